"""Pools for tests with real frameworks. Each is shared by a module, because importing a framework takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import skyward_core as sky


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Separate state folder without network access."""
    patch = pytest.MonkeyPatch()
    patch.setenv("SKYWARD_HOME", str(tmp_path_factory.mktemp("home")))
    patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hf")))
    patch.setenv("HF_HUB_OFFLINE", "1")
    patch.delenv("HF_TOKEN", raising=False)
    patch.setenv("OMP_NUM_THREADS", "1")  # many ranks share few cores: more threads only wait for each other
    # Models here are so small that XLA takes longer to compile them well than they run.
    patch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")
    yield
    patch.undo()


@pytest.fixture(scope="module")
def pool(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Pool of two nodes with the module's ``PLUGINS``."""
    options = sky.Options(console=False)
    with sky.Compute(nodes=2, plugins=request.module.PLUGINS, options=options) as compute:
        yield compute
    assert compute.receipt is not None and compute.receipt.ok
