"""``sky.sweep``: each combination of arguments as a trial, on real ranks."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.api.hyperparameter_sweep import PendingTrials
from skyward_core.model.errors import Cancelled, UsageError
from skyward_core.views.sweep_trials import TrialTableSource
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


@sky.function
def side(n: int, folder: str) -> list[int]:
    """Goes on until the gang beside it has begun, too."""
    info = sky.instance_info()
    Path(folder, f"{n}.{info.rank}").touch()
    if n < 2:
        wait_until(lambda: all(Path(folder, f"{other}.0").exists() for other in (0, 1)))
    if n == 3 and info.rank == 1:
        raise KeyError(n)
    return [info.rank, info.world_size, len(list(Path(folder).iterdir()))]


def test_gangs_of_two_nodes_run_side_by_side_and_the_next_when_one_ends(pool: sky.Compute, tmp_path: Path) -> None:
    trials = sky.sweep(side, n=range(5), folder=str(tmp_path)).with_nodes(2).on_all(pool)
    ended = [trial.place for trial in trials.as_completed()]
    assert sorted(ended) == [0, 1, 2, 3, 4]
    assert [[(rank, world) for rank, world, _ in t.value] for t in trials if t.ok] == [[(0, 2), (1, 2)]] * 4
    assert [t.outcome for t in trials] == ["returned"] * 3 + ["raised", "returned"], "the others go on"
    assert isinstance(trials[3].error, sky.RunError) and isinstance(trials[3].error.__cause__, KeyError)
    runs = [pool.pool.view.runs[t.run] for t in trials]
    assert not set(runs[0].nodes) & set(runs[1].nodes)


def test_the_table_of_gangs_is_found_by_any_of_their_runs(pool: sky.Compute) -> None:
    trials = sky.sweep(ranked, n=[1, 2, 4]).with_nodes(1) @ pool
    from skyward_core.client.sweep_results import trial_table_source

    runs = pool.pool.view.runs
    wait_until(lambda: all(runs[trial.run].state == "done" for trial in trials))
    for trial in trials:
        view = runs[trial.run]
        board: TrialTableSource = trial_table_source(pool.pool.context.ledger, pool.pool.row.key, view, {})
        table = board.table(view.id, view.tasks, pool.pool.view.metrics, runs)
        assert [(row.arguments, row.value, row.run) for row in table.rows] == [
            ((str(each.arguments["n"]),), each.value[0], each.run) for each in trials
        ]


@pytest.mark.parametrize("nodes", [0, 2])
def test_a_record_has_the_table(pool: sky.Compute, tmp_path: Path, nodes: int) -> None:
    from skyward_core.client.recording_export import export_recording
    from skyward_core.client.replay_session import Playback, Replay, open_recording

    sweep = sky.sweep(ranked, n=[1, 3, 2])
    trials = sweep.with_nodes(nodes) @ pool if nodes else sweep >> pool
    runs = pool.pool.view.runs
    wait_until(lambda: all(runs[each.run].state in ("done", "failed") for each in trials))
    pool.pool.context.background.run_deferred()
    pool.pool.news.records.flush()
    export_recording(pool.pool.ledger, pool.pool.row, "", tmp_path / "it")
    playback = Playback(open_recording(tmp_path / "it"))
    playback.seek(playback.state().end)
    playback.advance()
    replay = Replay(playback)
    view = playback.view
    run = view.runs[trials[2].run]
    found = replay.trials(view.key, run).result().table(run.id, run.tasks, view.metrics, view.runs)
    replay.detach()
    assert [(row.arguments, row.state, row.run) for row in found.rows] == [
        ((str(each.arguments["n"]),), each.outcome, each.run) for each in trials
    ]
    assert found.rows[0].value == 100 + (trials[0].value % 100 if not nodes else 0)


def test_gangs_that_do_not_fit_are_refused_before_anything_begins(pool: sky.Compute) -> None:
    before = len(pool.pool.view.runs)
    with pytest.raises(UsageError, match=r"needs 5 nodes, but pool .* has 4 nodes"):
        sky.sweep(ranked, n=[1, 2]).with_nodes(5) @ pool
    with pytest.raises(UsageError, match="applies to @ only: with >> each combination runs on one rank"):
        sky.sweep(ranked, n=[1, 2]).with_nodes(2) >> pool
    with pytest.raises(ValueError, match="a positive integer"):
        sky.sweep(ranked, n=[1, 2]).with_nodes(0)
    assert len(pool.pool.view.runs) == before


def test_a_cancelled_sweep_of_gangs_begins_nothing_more(pool: sky.Compute, tmp_path: Path) -> None:
    trials = sky.sweep(waits, n=[0, 1, 1, 1, 1], gate=str(tmp_path / "never")).with_nodes(2).on_all(pool)
    wait_until(lambda: trials[0].ok)
    trials.cancel()
    with pytest.raises(Cancelled):
        trials.wait()
    assert trials[0].value == [0, 0] and not any(t.ok for t in trials[1:])
    wait_until(lambda: all(run.state != "running" for run in pool.pool.view.runs.values()))


def test_cancelled_it_tells_what_had_ended(pool: sky.Compute, tmp_path: Path) -> None:
    trials = sky.sweep(waits, n=[0, 1, 1, 1, 1], gate=[str(tmp_path / "never")]) > pool
    wait_until(lambda: trials[0].ok)
    threading.Thread(target=trials.cancel).start()
    with pytest.raises(Cancelled):
        trials.wait()
    assert trials[0].value == 0 and not any(t.ok for t in trials[1:])


def test_front_ends_show_the_same_table(pool: sky.Compute) -> None:
    trials = sky.sweep(train, lr=[1.0], seed=(0, 2)) >> pool
    from skyward_core.client.sweep_results import trial_table_source

    view = pool.pool.view.runs[trials[0].run]
    board: TrialTableSource = trial_table_source(pool.pool.context.ledger, pool.pool.row.key, view, {})
    table = board.table(view.id, view.tasks, pool.pool.view.metrics)
    assert [row.arguments for row in table.rows] == [("1.0", "0"), ("1.0", "2")] and table.names == (
        "lr",
        "seed",
    )


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError, match="seed has no values"):
        sky.sweep(train, lr=1.0, seed=[])
    with pytest.raises(UsageError, match="more than 4,096"):
        sky.sweep(train, lr=range(100), seed=range(100))
    with pytest.raises(UsageError, match="generator function"):
        sky.sweep(counts, n=[1])
    with pytest.raises(TypeError, match="sweep takes a @function"):
        sky.sweep(max, key=[1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="right operand of >> must be a pool"):
        sky.sweep(train, lr=[1.0]) >> 3  # type: ignore[operator]
    assert isinstance(sky.sweep(train, lr={"one": 1}), PendingTrials) and len(sky.sweep(train, lr="ab")) == 1
