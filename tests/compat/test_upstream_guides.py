# mypy: ignore-errors
"""Upstream's guides as own scripts of the same shape.

Each script runs unchanged with ``--provider local``, or stops with one sentence.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core import providers

GUIDES = Path(__file__).parent / "guides"
ROOT = Path(__file__).parents[2]


def run(paths: list[Path], folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, str(GUIDES / "all_of_them.py"), *map(str, paths)],
        cwd=folder, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip


@pytest.mark.proof("7 s of a processor")
def test_upstream_guides_without_a_gpu_run_unchanged(tmp_path: Path) -> None:
    every = sorted(GUIDES.glob("g*.py"))
    has_redis = find_spec("redis") and (shutil.which("redis-server") or shutil.which("valkey-server"))
    paths = [each for each in every if has_redis or each.name != "g23_collections.py"]
    assert len(every) >= 10
    done = run(paths, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("RAN ")] == [f"RAN {each}" for each in paths]
    assert "replaces sky.VastAI(verified_only=True) (ignored: verified_only)" in done.stderr
    assert (
        "replaces sky.VastAI() or sky.Verda() or sky.AWS (ignored: vcpus, disk_gb, max_hourly_cost, allocation"
        in done.stderr
    )
    assert "r000| node 0 of 2" in done.stdout and "r001| node 1 of 2" not in done.stdout
    assert "r000| out of 0" in done.stdout and "r001| out of 1" not in done.stdout
    assert "r001| err of 1" in done.stderr and "r000| err of 0" not in done.stderr
    assert "said by nobody" not in done.stdout
    assert 'r000| step {"step": 1, "loss": 0.5, "phase": "warm"}' in done.stdout and "r000| done" in done.stdout
    for word in ("health_checker", "logging", "metrics"):
        assert f"({word}=...) is ignored" in done.stderr
    added = [line for line in done.stderr.splitlines() if "plugins=[sky.plugins.shared()] was added" in line]
    assert len(added) == bool(has_redis), "only where a script shares something"
    if not has_redis:
        pytest.skip("all others ran; not installed: redis")


# Guides that need what is not here: by their first such statement, and what is said of it.
STOPS = [
    ("buckets", "sky.Volume(bucket='b', mount='/data')", r"has no attribute 'Volume'\. .* buckets are not mounted"),
    ("their storage", "sky.storage.Hyperstack()", r"'storage'\. .* buckets are not mounted"),
    ("cuML", "sky.plugins.cuml()", r"'cuml'\. .* sky.Image"),
    ("sharing a GPU", "sky.plugins.Mps()", r"'Mps'\. .* need no setup"),
    ("consistency of collections", "sky.Consistency", r"'Consistency'\. .* one server and is always consistent"),
    ("parts of rented GPUs", "sky.Compute(provider=sky.AWS(region='r'), accelerator=sky.accelerators.L4(count=0.5))",
     "aws rents whole accelerators"),
    ("pools that grow", "sky.Compute(provider=sky.Local(), nodes=sky.Nodes(initial=1, min=1, max=4))",
     "pools that grow or shrink are not supported"),
    ("a daemon", "sky.Compute(provider=sky.Local(), url='http://localhost:7590')", "there is no daemon"),
    ("machines of others", "sky.Compute(provider=sky.Hyperstack())", "renting machines of Hyperstack is not supported"),
    ("their retries", "sky.Retry", r"'Retry'\. .* starts failed calls again"),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "sentence"), [row[1:] for row in STOPS], ids=[row[0] for row in STOPS])
def test_upstream_guide_that_cannot_run_names_what_it_lacks(statement: str, sentence: str) -> None:
    with pytest.raises((sky.UsageError, AttributeError), match=sentence) as caught:
        eval(statement, {"sky": sky})  # noqa: S307  as the guide has it
    assert "\n" not in str(caught.value)


def test_executor_of_the_newest_generation_is_a_worker() -> None:
    assert sky.Executor(type="thread", concurrency=4) == sky.Worker(executor="thread", concurrency=4)
    assert sky.Executor("process", concurrency=2, reuse=True) == sky.Worker(concurrency=2)
    assert sky.Compute(provider=sky.Local(), executor=sky.Executor(concurrency=3)).spec.worker.concurrency == 3
    assert providers.provider_override is None
