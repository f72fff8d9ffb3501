"""Cells of a notebook, in a kernel of Jupyter's as a notebook starts it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 60

CELLS = """
import dataclasses, inspect, pickle
import skyward_core as sky

@dataclasses.dataclass
class Config:
    width: int

SCALE = 5

def helper(x):
    return x * SCALE

@sky.function
def train(config):
    print("of rank", sky.instance_info().rank)
    same = pickle.loads(pickle.dumps(config))
    return [helper(same.width), inspect.getsource(helper).splitlines()[1].strip()]

@sky.function
def fails():
    raise ValueError("from a cell")

pool = sky.Compute(provider=sky.Local(), nodes=2)
compute = pool.__enter__()
# %%
print(train(Config(4)) @ compute)
# %%
SCALE = 7

def helper(x):
    return x + SCALE

print(train(Config(1)) @ compute)
# %%
try:
    fails() @ compute
except ValueError as error:
    print("caught:", error)
# %%
pool.__exit__(None, None, None)
print(pool.receipt)
"""


class Notebook:
    """A kernel, and what its cells print."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def run(self, cell: str) -> str:
        printed: list[str] = []

        def take(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])

        reply = self._client.execute_interactive(cell, timeout=PATIENCE, output_hook=take)
        assert reply["content"]["status"] == "ok", reply["content"]
        return "".join(printed)


@pytest.fixture
def notebook(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    pytest.importorskip("ipykernel")
    from jupyter_client.manager import KernelManager

    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    manager = KernelManager(kernel_name="python3", transport="ipc", ip=str(tmp_path / "k"))
    manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager.start_kernel(cwd=str(tmp_path))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE)
        yield Notebook(client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_cells_are_run_edited_and_fail_as_in_a_script(notebook: Notebook) -> None:
    first, run, edited, failed, last = CELLS.split("# %%")
    notebook.run(first)
    said = notebook.run(run)
    assert str([[20, "return x * SCALE"]] * 2) in said
    assert "of rank 0" in said and "of rank 1" in said
    assert str([[8, "return x + SCALE"]] * 2) in notebook.run(edited)
    assert "caught: fails failed: rank" in (said := notebook.run(failed)) and "from a cell" in said
    assert "created 2, verified gone 2, unaccounted 0" in notebook.run(last)
