"""``ranks_per_node="gpu"`` with real pynvml calls into a driver compiled by the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.client.session import Session
from skyward_core.model.errors import PoolError
from skyward_core.plugins.built_in.jax import count_visible_gpus
from skyward_core.pool import node_recovery
from tests.support.faults import on_loop
from tests.support.loss import lose, wait_for
from tests.support.task_places import pool_rank

COMPILER = shutil.which("cc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler for the driver's stand-in")

QUIET = sky.Options(console=False)
PER_GPU = sky.Worker(ranks_per_node="gpu")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).parents[1] / "support" / "fake_nvml.c"
    command = [str(COMPILER), "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(source)]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture
def driver(library: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return monkeypatch


@sky.function
def place() -> tuple[object, ...]:
    info = sky.instance_info()
    seen = os.environ["CUDA_VISIBLE_DEVICES"]
    return (info.rank, info.local_rank, info.node, info.ranks_per_node, info.world_size, info.accelerators, seen)


@sky.function
def task_sees(folder: str) -> tuple[int, str, int]:
    """Return the devices of a task on each of two ranks."""
    Path(folder, str(pool_rank())).touch()
    while len(list(Path(folder).iterdir())) < 2:
        time.sleep(0.01)
    return pool_rank(), os.environ.get("CUDA_VISIBLE_DEVICES", "all"), sky.instance_info().accelerators


@sky.function
def seen_by_all() -> str:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "all")


def test_task_sees_the_gpus_of_its_rank_if_ranks_see_all_gpus(driver: pytest.MonkeyPatch, tmp_path: Path) -> None:
    driver.setenv("FAKE_GPUS", "wnwn")
    begun = tmp_path / "begun"
    begun.mkdir()
    with sky.Compute(nodes=1, worker=sky.Worker(ranks_per_node=2), options=QUIET) as compute:
        assert seen_by_all() @ compute == ["all", "all"]
        gpus_seen = sky.gather(task_sees(str(begun)), task_sees(str(begun))) >> compute
        assert sorted(gpus_seen) == [(0, "0,1", 2), (1, "2,3", 2)]
        assert seen_by_all() @ compute == ["all", "all"]


def test_each_rank_sees_its_own_gpu(driver: pytest.MonkeyPatch) -> None:
    driver.setenv("FAKE_GPUS", "wn")
    with sky.Compute(name="per-gpu", nodes=2, worker=PER_GPU, options=QUIET) as compute:
        expected = [(r, r % 2, r // 2, 2, 4, 2, f"GPU-{r % 2}") for r in range(4)]
        assert place() @ compute == expected
        assert compute.pool.view.world_size == 4
        alone = [place(), place(), place(), place()]
        assert set(sky.gather(*alone) >> compute) <= {(0, 0, 0, 1, 1, 1, f"GPU-{n}") for n in range(2)}
        other = Session()
        assert other.attach("per-gpu").result(timeout=90).world_size == 4
        other.detach()


@sky.function
def seen() -> dict[str, Any]:
    """Return the place and devices that a rank, and a process started by it, see."""
    import json
    import sys

    code = "import skyward_core as sky; print(sky.instance_info().to_json())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    mine, theirs, data = sky.instance_info(), json.loads(child.stdout), json.loads(os.environ["COMPUTE_POOL"])
    return {
        "gpus": (mine.accelerators, mine.total_accelerators, mine.accelerator, mine.worker),
        "place": (mine.rank, mine.hostname, mine.network.interface, os.environ.get("CUDA_VISIBLE_DEVICES")),
        "child": json.loads(mine.with_run("").to_json()) == theirs,
        "told": {key: data[key] for key in ("node", "total_nodes", "head_addr", "accelerators", "total_accelerators")},
        "jax": count_visible_gpus(mine),
    }


def test_instance_info_counts_gpus_of_the_node_and_the_pool(driver: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The interpreter of one node loads another driver, so the nodes differ."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "if 'import devices' in open('/proc/self/cmdline').read():\n"
        "    try: os.close(os.open(os.environ['FIRST'], os.O_CREAT | os.O_EXCL))\n"
        "    except FileExistsError: os.environ['FAKE_GPUS'] = 'w'\n"
    )
    driver.setenv("FAKE_GPUS", "wn")
    image = sky.Image(env={"PYTHONPATH": str(tmp_path), "FIRST": str(tmp_path / "first")})
    with sky.Compute(nodes=2, worker=sky.Worker(ranks_per_node=2), options=QUIET, image=image) as compute:
        infos = seen() @ compute
    assert {each["gpus"][1:] for each in infos} == {(3, "NVIDIA H100 80GB HBM3", 0)}
    assert [each["gpus"][0] for each in infos] in ([2, 2, 1, 1], [1, 1, 2, 2])
    assert [each["place"] for each in infos] == [(r, os.uname().nodename, "lo", None) for r in range(4)]
    assert all(each["child"] and each["jax"] == each["gpus"][0] for each in infos)
    for rank, each in enumerate(infos):
        of_pool = {"node": rank // 2, "total_nodes": 2, "head_addr": "127.0.0.1", "total_accelerators": 3}
        assert each["told"] == of_pool | {"accelerators": each["gpus"][0]}


@pytest.mark.proof("1 s of a processor")
def test_sliced_gpu_has_one_rank_per_mig_slice(driver: pytest.MonkeyPatch) -> None:
    driver.setenv("FAKE_GPUS", "w3")
    with sky.Compute(worker=PER_GPU, options=QUIET) as compute:
        assert [seen[-1] for seen in place() @ compute] == ["GPU-0", "MIG-1-0", "MIG-1-1", "MIG-1-2"]


def test_visible_devices_variable_limits_ranks_per_gpu(driver: pytest.MonkeyPatch) -> None:
    image = sky.Image(env={"CUDA_VISIBLE_DEVICES": "3,5"})
    with sky.Compute(worker=PER_GPU, options=QUIET, image=image) as compute:
        assert [seen[-1] for seen in place() @ compute] == ["3", "5"]


@pytest.mark.parametrize(("gpus", "why"), [(None, "Driver Not Loaded"), ("", "the driver lists no GPU")])
def test_ranks_per_gpu_without_gpus_is_an_error_with_advice(
    gpus: str | None, why: str, driver: pytest.MonkeyPatch
) -> None:
    if gpus is not None:
        driver.setenv("FAKE_GPUS", gpus)
    compute = sky.Compute(worker=PER_GPU, options=QUIET)
    with pytest.raises(PoolError, match=rf"node 0 has none \(.*{why}.*\)\. Set the number") as caught, compute:
        pass
    assert "ranks_per_node=2" in str(caught.value)
    assert compute.receipt is not None and compute.receipt.ok


def test_nodes_with_different_gpu_counts_are_rejected(driver: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The start-up file of the interpreter gives the first node another ``FAKE_GPUS``."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "try: os.close(os.open(os.environ['FIRST'], os.O_CREAT | os.O_EXCL))\n"
        "except FileExistsError: pass\n"
        "else:\n    if 'devices' in open('/proc/self/cmdline').read(): os.environ['FAKE_GPUS'] = 'www'\n"
    )
    driver.setenv("FAKE_GPUS", "ww")
    image = sky.Image(env={"PYTHONPATH": str(tmp_path), "FIRST": str(tmp_path / "first")})
    compute = sky.Compute(nodes=2, worker=PER_GPU, options=QUIET, image=image)
    with pytest.raises(PoolError, match="with equal numbers of GPUs, but pool") as caught, compute:
        pass
    message = str(caught.value)
    assert "has: node 0 2, node 1 3. " in message or "has: node 0 3, node 1 2. " in message
    assert message.endswith("for example ranks_per_node=2.")


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("node", [0, 1])
def test_replacement_machine_has_one_rank_per_gpu(driver: pytest.MonkeyPatch, node: int) -> None:
    driver.setenv("FAKE_GPUS", "ww")
    options = sky.Options(console=False, grace=0.5, on_loss="replace")
    expected = [(r, r % 2, r // 2, 2, 4, 2, f"GPU-{r % 2}") for r in range(4)]
    with sky.Compute(nodes=2, worker=PER_GPU, options=options) as compute:
        assert place() @ compute == expected
        lose(compute, node)
        wait_for(compute, "degraded")
        assert place() @ compute == expected


@pytest.mark.proof("1 s of a processor")
def test_replacement_machine_with_fewer_gpus_is_rejected(driver: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The start-up file of the interpreter removes a GPU from the third machine, which is the replacement."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "if 'devices' in open('/proc/self/cmdline').read():\n"
        "    for number in range(9):\n"
        "        try: os.close(os.open(f\"{os.environ['COUNT']}{number}\", os.O_CREAT | os.O_EXCL))\n"
        "        except FileExistsError: continue\n"
        "        if number == 2: os.environ['FAKE_GPUS'] = 'w'\n"
        "        break\n"
    )
    driver.setenv("FAKE_GPUS", "ww")
    driver.setattr(node_recovery, "REPLACEMENT_PAUSES", (0.05, 0.05))
    image = sky.Image(env={"PYTHONPATH": str(tmp_path), "COUNT": str(tmp_path / "came")})
    options = sky.Options(console=False, grace=0.5, on_loss="replace")
    messages: list[str] = []
    with sky.Compute(nodes=2, worker=PER_GPU, options=options, image=image) as compute:
        on_loop(lambda: compute.pool.news.subscribe(lambda event: messages.append(str(event)), None))
        lose(compute, 1)
        wait_for(compute, "degraded")
        assert [each[0] for each in place() @ compute] == [0, 1, 2, 3]
        assert [line for line in messages if "requires nodes with equal numbers of GPUs" in line]
    assert compute.receipt is not None
    assert (compute.receipt.created, compute.receipt.ok) == (4, True)
