"""Benchmark of a DDP job with two ranks and 400 small steps: ``torchrun --standalone``, ``skyward-tui torchrun``."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from subprocess import PIPE
from time import perf_counter

from .fresh import BenchError, compile_ours
from .metric import Bar, Metric

RANKS = 2
ROUNDS = 5
LIVES = 3  # pairs of jobs whose steps are compared
TURNS = 40
STEPS = 25  # of a turn
WARM = 100
SECONDS = 120.0  # that one job may take, or be silent
TRIES = 3  # of the bare torchrun's, whose gloo aborts now and then as a job ends
JOB = """
import json, socket, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
net = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1)))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
generator = torch.Generator().manual_seed(dist.get_rank())

def steps(count):
    began = time.perf_counter()
    for step in range(count):
        x = torch.randn(32, 64, generator=generator)
        loss = torch.nn.functional.mse_loss(net(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return (time.perf_counter() - began) / count, loss.item(), torch.get_num_threads()

if len(sys.argv) == 1:
    told = steps(400)
    if dist.get_rank() == 0:
        with open("told.json", "w") as file:
            json.dump(told, file)
else:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(sys.argv[1])
        with line.makefile() as asked:
            for count in asked:
                dist.barrier()
                line.sendall(json.dumps(steps(int(count))).encode() + b"\\n")
dist.barrier()
del net, optimizer  # gloo may hang, or abort, where a model outlives its process group, or a rank its peer
dist.destroy_process_group()
"""


def measure() -> list[Metric]:
    compile_ours()
    here = Path(sys.executable)
    ours = [sys.executable, "-m", "skyward_tui", "torchrun", f"--nproc-per-node={RANKS}", "job.py"]
    theirs = [str(here.with_name("torchrun")), "--standalone", f"--nproc-per-node={RANKS}", "job.py"]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job.py").write_text(JOB, encoding="utf-8")
        whole: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(ROUNDS + 1):
            for us in order(turn):
                took = whole_job(ours, folder) if us else patiently(lambda: whole_job(theirs, folder))
                if turn:  # the first reads the framework from the disk
                    whole[us].append(took)
        step: dict[bool, list[float]] = {True: [], False: []}
        for life in range(LIVES):
            for us, took in steps_in_turn({True: ours, False: theirs}, order(life), folder):
                step[us].append(took)
    return [
        Metric("ddp_step_ms", median(step[True]) * 1e3, median(step[False]) * 1e3, Bar(ratio_at_most=1.02)),
        # What else the machine does only ever adds to a time: the least is the job's own.
        Metric("ddp_whole_job_s", min(whole[True]), min(whole[False]), Bar(ratio_at_most=0.7)),
    ]


def order(turn: int) -> Sequence[bool]:
    """Return the order of both sides, which alternates."""
    return (True, False) if turn % 2 else (False, True)


def patiently(job: Callable[[], float]) -> float:
    """Return the result of a job, which is repeated after a failure.

    Raises:
        BenchError: If every attempt fails.
    """
    for _ in range(TRIES - 1):
        try:
            return job()
        except BenchError as error:
            print(f"once more: {error}", file=sys.stderr)
    return job()


def whole_job(command: Sequence[str], folder: str) -> float:
    """Return the seconds of a whole command.

    Raises:
        BenchError: If the command fails or takes too long.
    """
    file = Path(folder, "told.json")
    file.unlink(missing_ok=True)
    began = perf_counter()
    environ = environment(folder)
    with subprocess.Popen(command, cwd=folder, env=environ, stdout=PIPE, stderr=PIPE, text=True) as job:
        try:
            _, errors = job.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            job.terminate()  # torchrun ends its ranks, which would outlive a SIGKILL
            with suppress(subprocess.TimeoutExpired):
                job.communicate(timeout=SECONDS)
            job.kill()
            raise BenchError(f"{command[0]} took longer than {SECONDS:g} s") from None
    whole = perf_counter() - began
    if job.returncode or not file.exists():
        raise BenchError(f"{command[0]} ended with {job.returncode}:\n{errors[-3000:]}")
    return whole


def steps_in_turn(
    commands: dict[bool, Sequence[str]], begin: Sequence[bool], folder: str
) -> Iterator[tuple[bool, float]]:
    """Yield the seconds per step of both jobs. They run at the same time and work alternately, so that a busy moment of
    the machine affects both.

    Raises:
        BenchError: If a job fails or stops answering, or if the jobs differ.
    """
    with ExitStack() as stack:
        jobs = {us: stack.enter_context(gang(commands[us], folder)) for us in begin}
        for job in jobs.values():
            run_steps(job, WARM)
        for turn in range(TURNS):
            seen = {}
            for us in order(turn):
                took, *seen[us] = run_steps(jobs[us], STEPS)
                yield us, took
            if seen[True] != seen[False]:
                raise BenchError(f"the last loss and the number of threads are {seen[True]} and {seen[False]}")


@contextmanager
def gang(command: Sequence[str], folder: str) -> Iterator[list[socket.socket]]:
    """Start a job that waits for commands to its ranks, and yield a connection to each rank."""
    with tempfile.TemporaryDirectory() as place, socket.socket(socket.AF_UNIX) as server, ExitStack() as stack:
        server.bind(f"{place}/line")
        server.listen(RANKS)
        server.settimeout(SECONDS)
        job = subprocess.Popen(
            [*command, f"{place}/line"],
            cwd=folder,
            env=environment(folder),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            try:
                lines = [stack.enter_context(server.accept()[0]) for _ in range(RANKS)]
            except TimeoutError:
                raise BenchError(f"the ranks of {command[0]} did not come up") from None
            for line in lines:
                line.settimeout(SECONDS)
            yield lines
            for line in lines:
                line.close()
            if status := job.wait(SECONDS):  # it has taken all its steps
                print(f"{command[0]} ended with {status}", file=sys.stderr)
        finally:
            if job.poll() is None:
                job.terminate()
                job.wait(SECONDS)


def run_steps(ranks: Sequence[socket.socket], count: int) -> tuple[float, float, int]:
    """Return the ranks' report on a number of steps: seconds of the slowest rank for each step, the last loss, and the
    threads.
    """
    for rank in ranks:
        rank.sendall(f"{count}\n".encode())
    received = []
    for rank in ranks:
        with rank.makefile() as answers:
            if not (answer := answers.readline()):
                raise BenchError("a rank has ended")
            received.append(json.loads(answer))
    seconds, losses, threads = zip(*received, strict=True)
    return max(seconds), sum(losses), max(threads)


def environment(folder: str) -> dict[str, str]:
    """Return the same environment for both sides. By default torchrun sets one thread, and we set the rank's share of
    the machine.
    """
    return os.environ | {"SKYWARD_HOME": f"{folder}/home", "OMP_NUM_THREADS": "1"}
