"""``sky.sweep``: each combination of arguments as a trial, on real ranks."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.front.api.trials import PendingTrials
from skyward_core.model.errors import Cancelled, UsageError
from skyward_core.views.trials import TrialBoard
from tests.support.waiting import wait_until


@sky.function
def train(lr: float, seed: int = 0, note: str = "") -> float:
    sky.log(loss=lr)
    sky.log(loss=lr / 2)
    if seed == 1:
        raise ValueError(f"bad seed {seed}")
    return lr * 10 + seed


@sky.function
def ranked(n: int) -> int:
    sky.log(n=n)
    if n == 3 and sky.instance_info().rank == 2:
        raise KeyError(n)
    return n * 100 + sky.instance_info().rank


@sky.function
def waits(n: int, gate: str) -> int:
    if n:
        wait_until(lambda: Path(gate).exists())
    return n


@sky.function
def counts(n: int):
    yield from range(n)


def test_each_combination_is_a_trial_and_one_that_fails_stops_no_other(pool: sky.Compute) -> None:
    trials = sky.sweep(train, lr=[1.0, 2.0], seed=range(3), note="same") >> pool
    assert [(t.arguments["lr"], t.arguments["seed"], t.outcome) for t in trials] == [
        (lr, seed, "raised" if seed == 1 else "returned") for lr in (1.0, 2.0) for seed in range(3)
    ]
    assert [t.value for t in trials if t.ok] == [10.0, 12.0, 20.0, 22.0]
    assert isinstance(trials[1].error, ValueError) and str(trials[1].error) == "bad seed 1"
    assert trials[4].numbers == {"loss": 1.0} and trials[4].run == trials[0].run
    shown = str(trials).splitlines()
    assert shown[0].split() == ["#", "lr", "seed", "note", "outcome", "loss", "result"]
    assert shown[2].split(maxsplit=6)[-1] == "ValueError: bad seed 1"


def test_they_come_as_they_end(pool: sky.Compute, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    trials = sky.sweep(waits, n=[1, 0], gate=str(gate)) > pool
    coming = trials.as_completed()
    assert next(coming).value == 0 and trials[0].outcome == "waiting"
    gate.touch()
    assert next(coming).value == 1 and [t.value for t in trials.wait()] == [1, 0]


def test_with_all_ranks_each_combination_is_a_gang_one_after_the_other(pool: sky.Compute) -> None:
    trials = sky.sweep(ranked, n=[1, 3, 2]) @ pool
    assert [t.value for t in trials] == [[100, 101, 102, 103], None, [200, 201, 202, 203]]
    assert isinstance(trials[1].error, sky.RunError) and trials[1].outcome == "raised"
    assert trials[2].numbers == {"n": 2.0} and len({t.run for t in trials}) == 3


def test_cancelled_it_tells_what_had_ended(pool: sky.Compute, tmp_path: Path) -> None:
    trials = sky.sweep(waits, n=[0, 1, 1, 1, 1], gate=[str(tmp_path / "never")]) > pool
    wait_until(lambda: trials[0].ok)
    threading.Thread(target=trials.cancel).start()
    with pytest.raises(Cancelled):
        trials.wait()
    assert trials[0].value == 0 and not any(t.ok for t in trials[1:])


def test_front_ends_show_the_same_table(pool: sky.Compute) -> None:
    trials = sky.sweep(train, lr=[1.0], seed=(0, 2)) >> pool
    from skyward_core.front.trials import board_of

    view = pool.pool.view.runs[trials[0].run]
    board: TrialBoard = board_of(pool.pool.context.ledger, pool.pool.row.key, view, {})
    table = board.table(view.id, view.tasks, pool.pool.view.metrics)
    assert [row.arguments for row in table.rows] == [("1.0", "0"), ("1.0", "2")] and table.names == (
        "lr",
        "seed",
    )


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError, match="seed has no values"):
        sky.sweep(train, lr=1.0, seed=[])
    with pytest.raises(UsageError, match="of 4,096 at most"):
        sky.sweep(train, lr=range(100), seed=range(100))
    with pytest.raises(UsageError, match="generator function"):
        sky.sweep(counts, n=[1])
    with pytest.raises(TypeError, match="sweep takes a @function"):
        sky.sweep(max, key=[1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="right of >> stands a pool"):
        sky.sweep(train, lr=[1.0]) >> 3  # type: ignore[operator]
    assert isinstance(sky.sweep(train, lr={"one": 1}), PendingTrials) and len(sky.sweep(train, lr="ab")) == 1
