"""Random faults during a training run that restarts: its result, its attempts and its records stay exact."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.store.ledger import Ledger
from tests.support.faults import agent_pids, on_loop, worker_pids
from tests.support.loss import cut, lose
from tests.support.pool_logs import last_run
from tests.support.processes import exists
from tests.support.waiting import wait_until

STEPS, SAVE_EVERY, LAST_FAULT = 100, 5, 60  # no fault meets a rank that is about to end
FAULTS = ("rank", "node", "error", "agent", "link")
RESTARTING = ("rank", "node", "error")  # faults that end an attempt; after the others the ranks work on


def next_state(state: int, rank: int, step: int) -> int:
    return (state * 6364136223846793005 + rank * 1442695040888963407 + step) % 2**64


@sky.function
def train(folder: str) -> tuple[int, int]:
    """Compute a state step by step from the newest checkpoint. Return the attempt and the state."""

    def save(path: Path, values: dict[str, int]) -> None:
        draft = path.with_suffix(".tmp")
        draft.write_text(json.dumps(values))
        draft.replace(path)

    rank, number = sky.instance_info().rank, sky.attempt().number
    saved, error = Path(sky.checkpoint_dir(), f"{rank}.json"), Path(folder, f"error.{rank}")
    values = json.loads(saved.read_text()) if saved.exists() else {"step": 0, "state": 0}
    while values["step"] < STEPS:
        step = values["step"] + 1
        values = {"step": step, "state": next_state(values["state"], rank, step)}
        if step % SAVE_EVERY == 0:
            save(saved, values)
        sky.log(step=step)
        save(Path(folder, f"{number}.{rank}.json"), {"step": step, "pid": os.getpid()})
        if error.exists():
            error.unlink()
            raise ValueError("bad batch")
        time.sleep(0.02)
    return number, values["state"]


class Training:
    """One run of ``train``, and the faults that it meets."""

    def __init__(self, compute: sky.Compute, folder: Path, seed: int) -> None:
        self._compute, self._folder, self._random = compute, folder, random.Random(seed)
        self._best = 0
        self.attempt = 1
        self.faults: list[str] = []
        self.pids: set[int] = set()

    def _positions(self) -> list[dict[str, int]]:
        return [json.loads(path.read_text()) for path in self._folder.glob(f"{self.attempt}.*.json")]

    def _has_progress(self) -> bool:
        steps = [each["step"] for each in self._positions()]
        return len(steps) == len(self._compute.pool.links) and min(steps) > self._best

    def meet_fault(self, running: Future[Any]) -> bool:
        """Wait for progress and cause a fault. Return whether there was still time for it."""
        wait_until(
            lambda: running.done() or self._has_progress(),
            what=lambda: f"progress of attempt {self.attempt} after {self.faults}",
        )
        time.sleep(self._random.uniform(0.0, 0.1))
        fault = self._random.choice(FAULTS)
        node = self._random.randrange(len(self._compute.pool.links))
        link = self._compute.pool.links[node]
        if fault == "link":
            wait_until(lambda: link.up)
        self.pids |= {*agent_pids(self._compute), *worker_pids(self._compute)}
        self._best = max((each["step"] for each in self._positions()), default=STEPS)
        if self._best > LAST_FAULT:
            return False
        self.faults.append(fault)
        match fault:
            case "rank":
                position = json.loads((self._folder / f"{self.attempt}.{node}.json").read_text())
                os.kill(position["pid"], signal.SIGKILL)
            case "node":
                lose(self._compute, node)
            case "error":
                (self._folder / f"error.{node}").touch()
            case "agent":
                os.kill(agent_pids(self._compute)[node], signal.SIGKILL)
            case "link":
                there = cut(link)
                time.sleep(self._random.uniform(0.0, 0.3))
                on_loop(lambda: setattr(link.transport, "socket", there))
        self.attempt += fault in RESTARTING
        return True


@pytest.mark.parametrize("seed", range(50))
@pytest.mark.proof("5 s of a processor", after=2)
def test_result_and_attempts_are_exact_after_random_faults(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.chdir(tmp_path)
    nodes = 2 + seed % 2
    options = sky.Options(
        console=False, grace=0.5, on_loss="restart", restarts=100, error_restarts=100, start_timeout=60.0,
        cluster=bool(seed % 3),
    )  # fmt: skip
    (folder := tmp_path / "positions").mkdir()
    with sky.Compute(nodes=nodes, options=options) as compute, ThreadPoolExecutor() as beside:
        training = Training(compute, folder, seed)
        running = beside.submit(lambda: train(str(folder)) @ compute)
        for _ in range(4):
            if not training.meet_fault(running):
                break
        results = running.result(60)
        expected = [0] * nodes
        for step in range(1, STEPS + 1):
            expected = [next_state(state, rank, step) for rank, state in enumerate(expected)]
        assert results == [(training.attempt, state) for state in expected], training.faults
        run = last_run(compute)
        wait_until(lambda: compute.pool.view.runs[run].state == "done")
        assert compute.pool.view.runs[run].attempt == training.attempt
        on_loop(compute.pool.context.news.records.flush)
        row = Ledger().run(run)
        assert row is not None
        assert (row.state, row.attempts or 1) == ("done", training.attempt)
        assert [outcome.kind for outcome, _ in Ledger().outcomes(run)] == ["returned"] * nodes
        (tmp_path / "next").mkdir()
        assert {number for number, _ in train(str(tmp_path / "next")) @ compute} == {1}
        training.pids |= {*agent_pids(compute), *worker_pids(compute)}
    # A process whose parent was killed is reaped by the system a little later.
    wait_until(lambda: not [pid for pid in training.pids if exists(pid)], what="the end of all processes")
