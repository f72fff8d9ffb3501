"""Random faults during a training run that restarts: its result, its attempts and its records stay exact."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.store.ledger import Ledger
from tests.support.faults import agent_pids, on_loop, worker_pids
from tests.support.full_disk import fill
from tests.support.loss import cut, lose
from tests.support.pool_logs import last_run
from tests.support.processes import exists, run_command
from tests.support.waiting import wait_until

STEPS, SAVE_EVERY, LAST_FAULT = 100, 20, 60  # no fault meets a rank that is about to end
MAX_LEAD = 10  # steps that a rank may be ahead of another one, as in a collective
DISK_SIZE = "1m"  # of the working folder: small, because ranks fill it
FAULTS = ("rank", "node", "error", "disk", "agent", "link")
FAULTS_WITHOUT_CLIENT = ("rank", "error", "disk")


def next_state(state: int, rank: int, step: int) -> int:
    return (state * 6364136223846793005 + rank * 1442695040888963407 + step) % 2**64


@sky.function
def train(folder: str, ranks: int) -> tuple[int, int]:
    """Compute a state step by step from the newest checkpoint. Return the attempt and the state."""

    def step_of(other: int) -> int:
        path = Path(folder, f"{number}.{other}.json")
        return int(json.loads(path.read_text())["step"]) if path.exists() else 0

    def save(path: Path, values: dict[str, int]) -> None:
        draft = path.with_suffix(".tmp")
        draft.write_text(json.dumps(values))
        draft.replace(path)

    def save_on_full_disk() -> None:
        free = fill(Path(folder_of_run, f"filler.{rank}"))
        try:
            save(saved, values)
        finally:
            free()

    rank, number = sky.instance_info().rank, sky.attempt().number
    folder_of_run = sky.checkpoint_dir()
    saved, error, disk = (
        Path(folder_of_run, f"{rank}.json"),
        *(Path(folder, f"{f}.{rank}") for f in ("error", "disk")),
    )
    values = json.loads(saved.read_text()) if saved.exists() else {"step": 0, "state": 0}
    save(Path(folder, f"begun.{number}.{rank}.json"), values)
    while values["step"] < STEPS:
        step = values["step"] + 1
        values = {"step": step, "state": next_state(values["state"], rank, step)}
        if step % SAVE_EVERY == 0:
            save(saved, values)
            save(Path(folder, f"saved.{number}.{rank}.json"), values)
        sky.log(step=step)
        save(Path(folder, f"{number}.{rank}.json"), {"step": step, "pid": os.getpid()})
        if error.exists():
            error.unlink()
            raise ValueError("bad batch")
        if disk.exists():
            disk.unlink()
            save_on_full_disk()
        time.sleep(0.02)
        while min(map(step_of, range(ranks))) < step - MAX_LEAD:
            time.sleep(0.02)
    return number, values["state"]


CLIENT = """
import sys
import skyward_core as sky
from tests.local.test_restart_chaos import OPTIONS, train

with sky.Compute(nodes=int(sys.argv[2]), name="shared", options=OPTIONS) as compute:
    train(sys.argv[1], int(sys.argv[2])) @ compute
"""
OPTIONS = sky.Options(console=False, grace=0.5, on_loss="restart", restarts=100, error_restarts=100, start_timeout=60.0)


class Training:
    """One run of ``train``, and the faults that it meets."""

    def __init__(self, folder: Path, nodes: int, seed: int) -> None:
        self._folder, self._nodes, self.random = folder, nodes, random.Random(seed)
        self._best = 0
        self.attempt = 1
        self.faults: list[str] = []
        self.pids: set[int] = set()

    def _positions(self) -> list[dict[str, int]]:
        return [json.loads(path.read_text()) for path in self._folder.glob(f"{self.attempt}.*.json")]

    def _has_progress(self) -> bool:
        steps = [each["step"] for each in self._positions()]
        return len(steps) == self._nodes and min(steps) > self._best

    def wait_for_progress(self, running: Future[Any] | None = None) -> bool:
        """Wait for progress of all ranks. Return whether there is still time for a fault."""
        wait_until(
            lambda: (running is not None and running.done()) or self._has_progress(),
            what=lambda: f"progress of attempt {self.attempt} after {self.faults}",
        )
        time.sleep(self.random.uniform(0.0, 0.1))
        self._best = max((each["step"] for each in self._positions()), default=STEPS)
        return self._best <= LAST_FAULT

    def fail(self, fault: str, node: int) -> None:
        """Kill a rank, make it raise an error, or let it save on a full disk."""
        self.faults.append(fault)
        position = json.loads((self._folder / f"{self.attempt}.{node}.json").read_text())
        self.pids.add(position["pid"])
        if fault == "rank":
            os.kill(position["pid"], signal.SIGKILL)
        else:
            (self._folder / f"{fault}.{node}").touch()
        self.attempt += 1

    def fail_any(self) -> None:
        self.fail(self.random.choice(FAULTS_WITHOUT_CLIENT), self.random.randrange(self._nodes))

    def meet_fault(self, compute: sky.Compute, running: Future[Any], faults: tuple[str, ...] = FAULTS) -> bool:
        """Wait for progress and cause a fault. Return whether there was still time for it."""
        if not self.wait_for_progress(running):
            return False
        fault, node = self.random.choice(faults), self.random.randrange(self._nodes)
        link = compute.pool.links[node]
        if fault in ("link", "node"):
            wait_until(lambda: link.up and exists(link.welcome["pid"]))  # the agent may have been killed before
        self.pids |= {*agent_pids(compute), *worker_pids(compute)}
        match fault:
            case "rank" | "error" | "disk":
                self.fail(fault, node)
                return True
            case "node":
                lose(compute, node)
                self.attempt += 1
            case "agent":
                os.kill(agent_pids(compute)[node], signal.SIGKILL)
            case "link":
                there = cut(link)
                time.sleep(self.random.uniform(0.0, 0.3))
                on_loop(lambda: setattr(link.transport, "socket", there))
        self.faults.append(fault)
        return True

    def check_begins(self) -> None:
        """Check that each attempt began with the newest complete checkpoint of each rank."""

        def step_of(path: Path) -> int:
            return int(json.loads(path.read_text())["step"]) if path.exists() else 0

        for rank in range(self._nodes):
            newest = 0
            for number in range(1, self.attempt + 1):
                begun = self._folder / f"begun.{number}.{rank}.json"
                assert begun.exists() and step_of(begun) in (newest, newest + SAVE_EVERY), (rank, number, self.faults)
                # A rank that is killed right after a save cannot note it any more.
                newest = max(step_of(begun), step_of(self._folder / f"saved.{number}.{rank}.json"))

    def check_end(self, compute: sky.Compute, results: list[Any]) -> None:
        """Check the results, the attempts and the records."""
        expected = [0] * self._nodes
        for step in range(1, STEPS + 1):
            expected = [next_state(state, rank, step) for rank, state in enumerate(expected)]
        assert results == [(self.attempt, state) for state in expected], self.faults
        self.check_begins()
        run = last_run(compute)
        wait_until(lambda: compute.pool.view.runs[run].state == "done")
        view = compute.pool.view.runs[run]
        assert [end.number for end in view.ended_attempts] == [*range(1, self.attempt)], self.faults
        full = [end for end in view.ended_attempts if "No space left on device" in end.message]
        assert len(full) == self.faults.count("disk") and {end.cause for end in full} <= {"error"}, self.faults
        on_loop(compute.pool.context.news.records.flush)
        row = Ledger().run(run)
        assert row is not None
        assert (row.state, row.attempts or 1) == ("done", self.attempt)
        assert [outcome.kind for outcome, _ in Ledger().outcomes(run)] == ["returned"] * self._nodes
        self.pids |= {*agent_pids(compute), *worker_pids(compute)}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Working folder on a small file system."""
    (folder := tmp_path / "project").mkdir()
    made = run_command(["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE}", "tmpfs", str(folder)])
    if made.returncode:
        pytest.skip(f"no small disk could be mounted: {made.stderr.strip()}")
    monkeypatch.chdir(folder)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def check_processes(training: Training) -> None:
    # A process whose parent was killed is reaped by the system a little later.
    wait_until(lambda: not [pid for pid in training.pids if exists(pid)], what="the end of all processes")


@pytest.mark.parametrize("seed", range(0, 50, 2))
@pytest.mark.proof("5 s of a processor", after=1)
def test_result_and_attempts_are_exact_after_random_faults(
    home: Path, tmp_path: Path, project: Path, seed: int
) -> None:
    nodes = 2 + seed % 4 // 2
    (folder := tmp_path / "positions").mkdir()
    options = replace(OPTIONS, cluster=bool(seed % 3))
    with sky.Compute(nodes=nodes, options=options) as compute, ThreadPoolExecutor() as beside:
        training = Training(folder, nodes, seed)
        running = beside.submit(lambda: train(str(folder), nodes) @ compute)
        for _ in range(4):
            if not training.meet_fault(compute, running):
                break
        training.check_end(compute, running.result(60))
        (tmp_path / "next").mkdir()
        assert {number for number, _ in train(str(tmp_path / "next"), nodes) @ compute} == {1}
    check_processes(training)


@pytest.mark.parametrize("seed", range(1, 50, 2))
@pytest.mark.proof("6 s of a processor")
def test_result_and_attempts_are_exact_if_the_client_is_killed(
    home: Path, tmp_path: Path, project: Path, seed: int
) -> None:
    """The client dies before, during or after a restart, and the next one attaches at any time."""
    nodes = 2 + seed % 4 // 2
    (folder := tmp_path / "positions").mkdir()
    training = Training(folder, nodes, seed)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", CLIENT, str(folder), str(nodes)]
    with subprocess.Popen(command, env=environment) as client:
        try:
            training.wait_for_progress()
            if training.random.random() < 0.5:
                training.fail_any()
                time.sleep(training.random.uniform(0.0, 0.5))
        finally:
            client.kill()
    for _ in range(training.random.randrange(3)):
        if training.wait_for_progress():
            training.fail_any()
    time.sleep(training.random.uniform(0.0, 4.0))
    with sky.attach("shared") as compute, ThreadPoolExecutor() as beside:
        try:
            running = beside.submit(compute.wait)
            for _ in range(2):
                if not training.meet_fault(compute, running, ("rank", "error", "disk", "node", "link")):  # type: ignore[arg-type]
                    break
            training.check_end(compute, running.result(60))  # type: ignore[arg-type]
        finally:
            compute.down()
    check_processes(training)
