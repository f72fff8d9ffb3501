"""Benchmark of restarts: a killed rank until the next attempt's first step, and the cost of a step without faults."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from .fresh import BenchError, compile_ours
from .metric import Bar, Metric
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


def measure() -> list[Metric]:
    compile_ours()
    tail = ["--nproc-per-node=2", "job.py"]
    ours, restarts = [sys.executable, "-m", "skyward_tui", "torchrun"], "--max-restarts=3"
    theirs = [str(Path(sys.executable).with_name("torchrun")), "--standalone", restarts, *tail]
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
                    print(f"without this round: {error}", file=sys.stderr)  # gloo may not connect again
                    continue
                if turn:  # the first round reads the framework from the disk
                    seconds[us].append(took)
        job.write_text(JOB, encoding="utf-8")
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
        Metric("step_with_restarts_ms", median(steps[True]) * 1e3, median(steps[False]) * 1e3, Bar(ratio_at_most=1.01)),
    ]


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
