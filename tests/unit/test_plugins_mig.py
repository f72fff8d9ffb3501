"""The mig plugin with real pynvml calls into a driver compiled by the tests."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from skyward_core import plugins
from skyward_core.model.accelerators import parse
from skyward_core.model.specs import PoolSpec
from skyward_core.plugins.built_in.mig import slices_per_gpu
from skyward_core.plugins.plugin import bootstrap_steps
from tests.support.plugin_gang import PRELUDE, places
from tests.support.processes import run_command

COMPILER = shutil.which("cc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler for the driver's stand-in")

CODE = (
    PRELUDE
    + """
with enter_process([plugins.mig(profile=sys.argv[2])], info):
    print(json.dumps(os.environ["CUDA_VISIBLE_DEVICES"]))
"""
)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).parents[1] / "support" / "fake_nvml.c"
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([str(COMPILER), "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return folder


def enter(driver, gpus, ranks, profile="3g.40gb"):
    """Return what the last of a node's ranks sees: its device, or the last line of its error."""
    environment = dict(os.environ) | {"LD_LIBRARY_PATH": str(driver), "PYTHONPATH": str(Path(__file__).parents[2])}
    environment.pop("FAKE_GPUS", None)
    if gpus is not None:
        environment["FAKE_GPUS"] = gpus
    arguments = [places(1, ranks)[-1].to_json(), profile]
    done = run_command([sys.executable, "-c", CODE, *arguments], env=environment)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("profile", "gpu", "count"),
    [
        ("1g.10gb", None, 7),
        ("2g.20gb", None, 3),
        ("3g.40gb", None, 2),
        ("1g.20gb", None, 4),  # one compute slice of seven, and a quarter of the memory
        ("4g.40gb", None, 1),
        ("1g.10gb+me", None, 1),
        ("2g.999gb", None, 3),  # newer than the catalogue
        ("1g.10gb", "A100-40GB", 4),
        ("1g.10gb", "A100-80GB:8", 7),
        ("1g.10gb", "A100", 4),
        ("1g.10gb+me", "H100", 1),
        ("2g.12gb", "A30", 2),
        ("1g.24gb", "RTX-PRO-6000", 4),
    ],
)
def test_mig_slices_per_gpu_come_from_the_catalogue(profile, gpu, count):
    assert slices_per_gpu(profile, gpu and parse(gpu)) == count


@pytest.mark.parametrize(
    ("profile", "gpu", "words"),
    [
        ("3g.40gb", "A100-40GB", "A100-40GB has no MIG profile '3g.40gb'. Use 1g.5gb"),
        ("3g.40gb", "T4", "T4 has no MIG profiles in the catalogue"),
    ],
)
def test_gpu_without_the_mig_profile_is_rejected_before_creation(profile, gpu, words):
    spec = PoolSpec(name="p", provider=None, accelerator=gpu)
    with pytest.raises(plugins.PluginError, match=f"plugin mig failed in bootstrap: UsageError: {words}"):
        bootstrap_steps([plugins.mig(profile)], spec)


def test_each_rank_gets_its_own_mig_slice(driver):
    seen = [enter(driver, "22", ranks) for ranks in (1, 2, 3, 4)]
    assert seen == ["MIG-0-0", "MIG-0-1", "MIG-1-0", "MIG-1-1"]


def test_gpus_that_are_not_sliced_are_ignored_by_mig(driver):
    assert enter(driver, "wn2", 2) == "MIG-2-1"


@pytest.mark.parametrize(
    ("gpus", "ranks", "profile", "message"),
    [
        ("2", 3, "3g.40gb", "node 0 has 2 MIG slices of 3g.40gb, but 3 ranks need one each"),
        ("2", 1, "1g.10gb", "node 0 has 0 MIG slices of 1g.10gb"),
        ("w", 1, "3g.40gb", "no GPU of this node is in MIG mode (NVIDIA H100 80GB HBM3)"),
        ("n", 1, "3g.40gb", "no GPU of this node is in MIG mode"),
        ("", 1, "3g.40gb", "no GPU of this node is in MIG mode (no GPU)"),
        (None, 1, "3g.40gb", "the NVIDIA driver does not answer (Driver Not Loaded)"),
    ],
)
def test_missing_mig_slices_are_a_plugin_error(driver, gpus, ranks, profile, message):
    text = enter(driver, gpus, ranks, profile)
    assert message in text
    assert "PluginError: plugin mig failed in around_process" in text


@pytest.mark.parametrize(
    ("listed", "works", "asked"),
    [
        ("GPU 0: NVIDIA H100\n  MIG 3g.40gb     Device  0: (UUID: MIG-x)\n", True, []),
        ("GPU 0: NVIDIA H100\n", True, ["-mig 1", "mig -cgi 3g.40gb,3g.40gb -C"]),
        ("GPU 0: NVIDIA T4\n", False, ["-mig 1"]),
    ],
)
def test_gpus_are_sliced_once_by_the_bootstrap_step(tmp_path, listed, works, asked):
    (tmp_path / "listed").write_text(listed)
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        f'#!/bin/sh\n[ "$1" = -L ] && exec cat {tmp_path}/listed\n'
        f'echo "$*" >> {tmp_path}/asked\nexit {0 if works else 1}\n'
    )
    tool.chmod(0o755)
    (step,) = plugins.mig().bootstrap(PoolSpec(name="p", provider=None))
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", step], env=environment, capture_output=True, text=True, check=False)
    log = tmp_path / "asked"
    assert (log.read_text().splitlines() if log.exists() else []) == asked
    assert done.returncode == (0 if works else 1)
    assert works or "cannot create MIG slices of 3g.40gb" in done.stderr
