"""Benchmark of restarts: from a killed rank or a power cut to the next step, steps without faults, and copies of
checkpoints.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from .fresh import BenchError, compile_ours, fresh
from .metric import Bar, Metric
from .outputs import _scp
from .ssh import Hosts
from .torchrun import JOB, LIVES, order, steps_in_turn, whole_job

ROUNDS = 5
KILLED = """
import time
began = time.time()
import json, os, signal
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
values = torch.ones(1)
dist.all_reduce(values)
stepped, rank = time.time(), dist.get_rank()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    time.sleep(0.2)
    if rank == 1:
        with open("killed.json", "w") as file:
            json.dump(time.time(), file)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(values)  # waits for the killed rank, as a training step does
with open(f"again.{rank}.json", "w") as file:
    json.dump([began, stepped], file)
dist.barrier()
if rank == 0:
    with open("told.json", "w") as file:
        file.write("0")
dist.barrier()
dist.destroy_process_group()
"""
# Steps that wait for 10 ms, as for a GPU, so that the noise of the processors is small. Every 20th step saves.
WAITING = JOB.replace("import json,", "import json, os,").replace(
    "        optimizer.step()\n",
    """        optimizer.step()
        time.sleep(0.01)
        if step % 20 == 19 and dist.get_rank() == 0:
            os.makedirs(os.environ["SKYWARD_CHECKPOINT_DIR"], exist_ok=True)
            torch.save(net.state_dict(), os.environ["SKYWARD_CHECKPOINT_DIR"] + "/step.pt")
""",
)


def measure() -> list[Metric]:
    compile_ours()
    tail = ["--nproc-per-node=2", "job.py"]
    ours, restarts = [sys.executable, "-m", "skyward_tui", "torchrun"], "--max-restarts=3"
    # With the store that torchrun shares among its attempts, ranks of a restart often hang as gloo connects them.
    alone = ["env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"]
    theirs = [*alone, str(Path(sys.executable).with_name("torchrun")), "--standalone", restarts, *tail]
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder, "job.py")
        job.write_text(KILLED, encoding="utf-8")
        seconds: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for turn in range(ROUNDS + 1):
            for us in order(turn):
                try:
                    took = _restart([*ours, restarts, *tail] if us else theirs, folder)
                except BenchError as error:
                    if us:
                        raise
                    print(f"without this round: {error}", file=sys.stderr)
                    continue
                if turn:  # the first round reads the framework from the disk
                    seconds[us].append(took)
        job.write_text(WAITING, encoding="utf-8")
        steps: dict[bool, list[float]] = {True: [], False: []}
        for life in range(LIVES):
            for us, step in steps_in_turn({True: [*ours, restarts, *tail], False: [*ours, *tail]}, order(life), folder):
                steps[us].append(step)
    whole, beyond = (
        {us: median(each[at] for each in found) if found else None for us, found in seconds.items()} for at in (0, 1)
    )
    return [
        Metric("killed_rank_to_next_step_s", whole[True], whole[False]),
        Metric("beyond_start_of_script_s", beyond[True], beyond[False], Bar(at_most=3.0)),
        Metric(
            "step_without_faults_ms", median(steps[True]) * 1e3, median(steps[False]) * 1e3, Bar(ratio_at_most=1.01)
        ),
        *measure_power_cuts(),
        *measure_copies(),
    ]


CUTS = 6


def measure_power_cuts() -> list[Metric]:
    """Measure the longest times from the power cut of a host until its loss is detected, and until the next step."""
    from tests.lab import missing

    if why := missing():
        print(f"without power cuts: {why}", file=sys.stderr)
        return []
    cuts = [fresh("restart:cut_power", number % 2) for number in range(CUTS)]
    detected, stepped = (max(each[at] for each in cuts) for at in (0, 1))
    return [
        Metric("power_cut_to_detection_s", detected, None, Bar(at_most=5.0)),
        Metric("power_cut_to_next_step_s", stepped, None, Bar(at_most=10.0)),
    ]


def cut_power(node: int) -> tuple[float, float]:
    """Return the seconds from the power cut of a node's host until its loss is detected, and until the first step of
    the next attempt on a spare host.
    """
    import skyward_core as sky
    from skyward_core.views.events import NodeSilence
    from tests.lab import Lab
    from tests.lab.pools import ssh
    from tests.support.faults import on_loop
    from tests.support.waiting import wait_until

    @sky.function
    def step(seconds: float) -> float:
        """Return the time of a step. In the first attempt, keep training until a host is lost."""
        if not sky.attempt().is_restart:
            print("began", flush=True)
            time.sleep(seconds)
        return time.time()

    lost_at, cut_at = list[float](), list[float]()
    options = sky.Options(console=False, on_loss="restart")
    with (
        Lab(3) as lab,
        ThreadPoolExecutor() as beside,
        sky.Compute(provider=ssh(lab), nodes=2, image=sky.Image(workdir=PROJECT), options=options) as compute,
    ):
        view, news = compute.pool.view, compute.pool.news
        on_loop(
            lambda: news.subscribe(
                lambda e: lost_at.append(time.time()) if isinstance(e, NodeSilence) and e.state == "lost" else None,
                None,
            )
        )

        def cut() -> None:
            wait_until(lambda: all(view.logs.rank(rank).lines(0, 1) == ["began"] for rank in (0, 1)))
            time.sleep(5.0 + random.random())  # long enough for heartbeats, at any time between two of them
            cut_at.append(time.time())
            lab.hosts[node].power_off()

        cutting = beside.submit(cut)
        stepped = max(step(60.0) @ compute)
        cutting.result()
        lab.hosts[node].power_on()  # so that the teardown can finish
    return lost_at[0] - cut_at[0], stepped - cut_at[0]


SIZE = 1_000_000_000  # bytes of a checkpoint
COPY_ROUNDS = 3
PROJECT = Path(__file__).parent


def measure_copies() -> list[Metric]:
    """Measure copies of a checkpoint to the client and to a second host, beside scp, and the steps meanwhile."""
    from tests.lab import Lab, missing

    if why := missing():
        print(f"without copies of checkpoints: {why}", file=sys.stderr)
        return []
    with Lab(2) as lab:
        hosts = asdict(Hosts(tuple(h.address for h in lab.hosts), lab.user, str(lab.key), str(lab.known_hosts)))
        # Steps on one processor compete with both hosts and the client. Steps that wait are like those of a GPU.
        computing = [fresh("restart:copy_once", hosts, False) for _ in range(COPY_ROUNDS)]
        waiting = [fresh("restart:copy_once", hosts, True) for _ in range(COPY_ROUNDS)] if find_spec("torch") else []
    download, neighbour, scp, lost, processor, share = (median(each[at] for each in computing) for at in range(6))
    return [
        Metric("copy_to_client_mb_per_s", SIZE / 1e6 / download, SIZE / 1e6 / scp, Bar(ratio_at_least=0.8)),
        Metric("copy_to_neighbour_mb_per_s", SIZE / 1e6 / neighbour, SIZE / 1e6 / scp, Bar(ratio_at_least=0.8)),
        Metric("two_copies_of_a_gb_processor_s", processor, None, Bar(at_most=4.0)),
        Metric("two_copies_of_a_gb_training_lost_s", lost),
        Metric("two_copies_of_a_gb_training_slower_percent", 100 * share, None, Bar(at_most=3.0)),
        Metric(
            "two_copies_of_a_gb_waiting_training_slower_percent",
            100 * median(each[5] for each in waiting) if waiting else None,
            None,
            Bar(at_most=3.0),
        ),
    ]


def copy_once(hosts: dict[str, Any], waits: bool) -> tuple[float, float, float, float, float, float]:
    """Return the seconds of a download, of a copy to the neighbour and of scp, those that training has lost, the
    processor time of both copies on the node that saved, and the share of its time by which training was slower.

    Args:
        hosts: Fields of ``Hosts``.
        waits: Whether a step waits for 40 ms, as for a GPU, and ends with a collective of both hosts. Otherwise it
            uses one processor of one host.
    """
    import skyward_core as sky
    from skyward_core.pool import output_files
    from skyward_core.pool.checkpoint_copies import CheckpointCopies

    @sky.function
    def train(size: int, seconds: float) -> tuple[str, list[tuple[float, float]], float]:
        """Save a checkpoint, and take steps for the given time. Return its path, the steps, and the processor time of
        its copies.
        """
        path, steps = Path(sky.checkpoint_dir(), "step-1.bin").absolute(), list[tuple[float, float]]()
        if sky.instance_info().is_head:
            with path.open("wb") as file:
                for _ in range(0, size, 1 << 20):
                    file.write(os.urandom(1 << 20))
                file.truncate(size)
        if waits:
            from torch import distributed, ones

            distributed.barrier()
            gradients = ones(1024)
        end = time.time() + seconds
        while (begun := time.time()) < end or waits:
            if waits:
                time.sleep(0.04)
                sum(range(20_000))
                gradients[0] = begun < end
                distributed.all_reduce(gradients.clamp_(0, 1))
                if gradients[0] < distributed.get_world_size():
                    break
            elif sky.instance_info().is_head:
                sum(range(200_000))
            else:
                break
            steps.append((begun, time.time() - begun))
        return str(path), steps, sum(processor_seconds())

    def processor_seconds() -> Iterator[float]:
        """Yield the processor time of each process of this node that sends files."""
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if b"file_transfer_server" in (process / "cmdline").read_bytes():
                    times = (process / "stat").read_text().rpartition(")")[2].split()[11:13]
                    yield sum(map(int, times)) / os.sysconf("SC_CLK_TCK")

    spans: dict[str, tuple[float, float]] = {}

    def timed(owner: Any, name: str) -> None:
        work = getattr(owner, name)

        async def run(*given: Any, **more: Any) -> Any:
            begun = time.time()
            done = await work(*given, **more)
            if time.time() - begun > 0.3:  # calls without a file take less
                spans.setdefault(name, (begun, time.time()))
            return done

        setattr(owner, name, run)

    timed(output_files.OutputFetcher, "fetch")
    timed(CheckpointCopies, "_copy")
    output_files.FETCH_INTERVALS = (0.3, 0.3)
    chosen = {"user": hosts["user"], "keys": hosts["key"], "known_hosts": hosts["known_hosts"], "config": False}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        options = sky.Options(console=False, on_loss="restart")
        provider = sky.SSH(list(hosts["addresses"]), python=sys.executable if waits else None, **chosen)
        image, plugins = sky.Image(workdir=PROJECT), [sky.plugins.torch(backend="gloo")] if waits else []
        with sky.Compute(provider=provider, nodes=2, image=image, plugins=plugins, options=options) as compute:
            path, steps, processor = (train(SIZE, 20.0) @ compute)[0]
            scp = _scp(hosts, path, Path(folder) / "theirs")
    if spans.keys() != {"fetch", "_copy"}:
        raise BenchError(f"the checkpoint was not copied: {spans}")
    apart = [took for begun, took in steps if not any(start <= begun < end for start, end in spans.values())]
    if not apart:
        raise BenchError(f"training has ended before the copies: {spans}")
    usual = sum(apart) / len(apart)  # the median would count usual pauses as those of the copies
    during = [took for begun, took in steps if any(start <= begun < end for start, end in spans.values())]
    lost = sum(during) - usual * len(during)
    download, neighbour = (spans[name][1] - spans[name][0] for name in ("fetch", "_copy"))
    return download, neighbour, scp, lost, processor, lost / (usual * len(during))


def _restart(command: Sequence[str], folder: str) -> tuple[float, float]:
    """Return the seconds from the end of a rank to the next attempt's first step: all, and those before the script.

    Raises:
        BenchError: If the command fails, or if a rank has not restarted.
    """
    for path in Path(folder).glob("*.json"):
        path.unlink()
    whole_job(command, folder)
    try:
        texts = [Path(folder, f"{name}.json").read_text() for name in ("killed", "again.0", "again.1")]
    except FileNotFoundError as error:
        raise BenchError(f"{command[0]} did not restart the script: {error}") from None
    killed, *ranks = map(json.loads, texts)
    return max(step for _, step in ranks) - killed, max(begin for begin, _ in ranks) - killed
