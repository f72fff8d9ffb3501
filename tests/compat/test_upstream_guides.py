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


# What these say is shown by tests of ``local/``, in our own words: they run with ``--proofs``.
SHOWN_THERE = {
    "g02_side_by_side", "g05_environments", "g13_streams", "g14_executors", "g15_futures", "g16_what_goes_wrong",
    "g21_standalone", "g22_cells",
}  # fmt: skip
NEEDS = {"g08_joblib.py": "joblib", "g06_data_sharding.py": "numpy", "g23_collections.py": "redis"}


def run(paths: list[Path], folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, str(GUIDES / "all_of_them.py"), *map(str, paths)],
        cwd=folder, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip


@pytest.mark.proof("torch and scikit-learn; 8 s of a processor")
def test_upstream_guides_of_heavy_frameworks_run_unchanged(tmp_path: Path) -> None:
    done = run(sorted(GUIDES.glob("p*.py")), tmp_path)
    assert done.returncode == 0 and done.stdout.count("RAN ") == 2, done.stderr


@pytest.mark.proof("7 s of a processor")
def test_upstream_guides_without_a_gpu_run_unchanged(tmp_path: Path, proofs: bool) -> None:
    every = sorted(GUIDES.glob("g*.py"))
    lacks = {name: needed for name, needed in NEEDS.items() if find_spec(needed) is None}
    if shutil.which("redis-server") is None and shutil.which("valkey-server") is None:
        lacks["g23_collections.py"] = "redis-server"
    paths = [each for each in every if each.name not in lacks and (proofs or each.stem not in SHOWN_THERE)]
    assert len(every) >= 21
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
    assert len(added) == ("g23_collections.py" not in lacks), "only where a script shares something"
    if lacks:
        pytest.skip(f"all others ran; not installed: {', '.join(lacks.values())}")


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
