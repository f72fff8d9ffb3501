"""Calls and sweeps with each operator, on real processes."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import skyward_core as sky
from skyward_core.api.hyperparameter_sweep import PendingTrials
from skyward_core.model.errors import Cancelled, UsageError
from skyward_core.views.sweep_trials import TrialTableSource
from tests.support.task_places import pool_rank
from tests.support.waiting import wait_until


@sky.function
def place() -> tuple[int, int, int]:
    info = sky.instance_info()
    return info.rank, info.world_size, os.getpid()


@sky.function
def runs_on() -> int:
    return pool_rank()


@sky.function
def add(a: int, b: int = 1) -> int:
    return a + b


@sky.function
def count(n: int):  # type: ignore[no-untyped-def]
    yield from range(n)


@sky.function
def stumble(n: int):  # type: ignore[no-untyped-def]
    yield from range(n)
    raise LookupError("midway")


def test_broadcast_returns_a_list_in_rank_order(pool: sky.Compute) -> None:
    got = place() @ pool
    assert [rank for rank, _, _ in got] == [0, 1, 2, 3]
    assert {size for _, size, _ in got} == {4}
    assert len({pid for _, _, pid in got} | {os.getpid()}) == 5


def test_single_calls_go_to_nodes_in_turns(pool: sky.Compute) -> None:
    assert sorted(runs_on() >> pool for _ in range(4)) == [0, 1, 2, 3]
    assert (place() >> pool)[:2] == (0, 1)


def test_single_call_skips_a_busy_node(pool: sky.Compute, tmp_path: Path) -> None:
    def wait(go: str) -> int:
        while not os.path.exists(go):  # noqa: PTH110  the function travels without this module
            time.sleep(0.005)
        return pool_rank()

    busy = sky.function(wait)(str(tmp_path / "go")) > pool
    others = [runs_on() >> pool for _ in range(6)]
    (tmp_path / "go").touch()
    rank = busy.result(60)
    assert sorted(others) == sorted([other for other in range(4) if other != rank] * 2)


def test_user_code_runs_on_the_main_thread_of_its_own_process_group(pool: sky.Compute) -> None:
    def look() -> tuple[bool, bool]:
        return threading.current_thread() is threading.main_thread(), os.getpgid(0) == os.getpid()

    assert sky.function(look)() @ pool == [(True, True)] * 4


def test_workers_persist_between_runs(pool: sky.Compute) -> None:
    assert [pid for *_, pid in place() @ pool] == [pid for *_, pid in place() @ pool]


def test_groups_return_tuples_in_call_order(pool: sky.Compute) -> None:
    assert (add(1) & add(2) & add(3, b=4)) >> pool == (2, 3, 7)
    assert sky.gather(*[add(i) for i in range(100)]) >> pool == tuple(range(1, 101))
    assert sky.gather() >> pool == ()


def test_unordered_streamed_group_yields_results_as_they_arrive(pool: sky.Compute, tmp_path: Path) -> None:
    flag = tmp_path / "go"

    def wait_for_flag() -> str:
        while not flag.exists():
            time.sleep(0.01)
        return "slow"

    def quick() -> str:
        return "quick"

    slow, fast = sky.function(wait_for_flag), sky.function(quick)
    results = iter(sky.gather(slow(), fast(), fast(), stream=True, ordered=False) >> pool)
    assert [next(results), next(results)] == ["quick", "quick"]
    flag.touch()
    assert list(results) == ["slow"]


def test_ordered_streamed_group_keeps_the_call_order(pool: sky.Compute) -> None:
    assert list(sky.gather(*[add(i) for i in range(50)], stream=True) >> pool) == list(range(1, 51))


def test_streamed_group_raises_the_exception_of_a_task(pool: sky.Compute) -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(sky.RunError) as caught:
        list(sky.gather(add(1), sky.function(fail)(), stream=True, ordered=False) >> pool)
    assert isinstance(caught.value.__cause__, ValueError)
    assert str(caught.value).startswith("fail failed: task 1 raised ValueError: no"), "not the group's first function"
    assert caught.value.function == "fail"


def test_greater_than_operator_returns_a_future(pool: sky.Compute) -> None:
    future = add(20) > pool
    assert isinstance(future, Future)
    assert future.result(timeout=90) == 21


def test_cancelled_future_stops_its_run(pool: sky.Compute) -> None:
    def hang() -> None:
        time.sleep(600)

    future = sky.function(hang)() > pool
    assert future.cancel()
    assert add(1) @ pool == [2] * 4


def test_generator_values_arrive_while_the_rank_still_runs(pool: sky.Compute, tmp_path: Path) -> None:
    flag = tmp_path / "go"

    def produce():  # type: ignore[no-untyped-def]
        yield "first"
        while not flag.exists():
            time.sleep(0.01)
        yield "second"

    values = iter(sky.function(produce)() >> pool)
    assert next(values) == "first"
    flag.touch()
    assert list(values) == ["second"]


def test_generator_waits_for_its_reader(pool: sky.Compute, tmp_path: Path) -> None:
    mark = tmp_path / "made"

    def produce():  # type: ignore[no-untyped-def]
        for i in range(1000):
            mark.write_text(str(i))
            yield i

    values = iter(sky.function(produce)() >> pool)
    assert next(values) == 0
    # It may run ahead by its window; a reader that takes nothing holds it there.
    seen = -1
    while (now := int(mark.read_text() or 0)) != seen:
        seen = now
        time.sleep(0.3)
    assert seen < 40
    assert sum(values) == sum(range(1, 1000))


def test_generator_exception_is_raised_after_its_values(pool: sky.Compute) -> None:
    got = []
    with pytest.raises(sky.RunError) as caught:
        for value in stumble(30) >> pool:
            got.append(value)
    assert got == list(range(30))
    assert isinstance(caught.value.__cause__, LookupError)


def test_broadcast_of_a_generator_returns_an_iterator_per_rank(pool: sky.Compute) -> None:
    assert [list(values) for values in count(20) @ pool] == [list(range(20))] * 4


def test_closing_a_generator_early_ends_it_on_the_rank(pool: sky.Compute) -> None:
    for value in count(10_000_000) >> pool:
        if value == 5:
            break
    assert add(1) @ pool == [2] * 4


def test_large_values_are_sent_in_both_directions(pool: sky.Compute) -> None:
    data = np.arange(2_000_000, dtype=np.float64)

    def double(x: np.ndarray) -> np.ndarray:
        return x * 2

    for value in sky.function(double)(data) @ pool:
        np.testing.assert_array_equal(value, data * 2)


def test_captured_values_and_local_classes_are_sent(pool: sky.Compute) -> None:
    class Point:
        def __init__(self, x: int) -> None:
            self.x = x

    offset = Point(40)

    def shifted(by: int) -> Point:
        return Point(offset.x + by)

    assert (sky.function(shifted)(2) >> pool).x == 42


def test_concurrent_runs_of_many_threads_never_mix(pool: sky.Compute) -> None:
    def echo(tag: str) -> tuple[str, int]:
        return tag, sky.instance_info().rank

    both = sky.function(echo)

    def work(thread: int) -> bool:
        for i in range(15):
            tag = f"{thread}.{i}"
            if both(tag) @ pool != [(tag, rank) for rank in range(4)] or (both(tag) >> pool)[0] != tag:
                return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))


def test_local_calls_the_function_in_this_process() -> None:
    assert add.local(1, b=2) == 3
    assert add(1, b=2).local() == 3


def test_right_operand_that_is_no_pool_is_rejected() -> None:
    with pytest.raises(TypeError, match="must be a pool"):
        add(1) >> object()  # type: ignore[operator]
    with pytest.raises(TypeError, match="broadcast its calls one by one"):
        sky.gather(add(1)) @ object()


class Watched:
    """Large value that records when and in which thread it was loaded. The value of rank 1 cannot be loaded."""

    loaded: list[tuple[int, threading.Thread]] = []  # noqa: RUF012  here, not on the nodes

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.data = bytes(size)

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__ |= state
        Watched.loaded.append((self.rank, threading.current_thread()))
        if self.rank == 1:
            raise LookupError("rank 1 stays shut")


def test_large_results_are_loaded_as_they_arrive(pool: sky.Compute, tmp_path: Path) -> None:
    last = tmp_path / "may-end"

    def give() -> Watched:
        rank = sky.instance_info().rank
        while rank == 3 and not last.exists():
            time.sleep(0.005)
        return Watched(rank, 200_000)

    Watched.loaded.clear()
    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(lambda: sky.function(give)() @ pool)
        while len(Watched.loaded) < 3 and not running.done():
            time.sleep(0.005)
        assert sorted(rank for rank, _ in Watched.loaded) == [0, 1, 2]
        assert not running.done(), "an error in one is told when all have ended"
        last.touch()
        with pytest.raises(sky.RunError, match="rank 1 stays shut") as caught:
            running.result()
        assert isinstance(caught.value.__cause__, LookupError)
    assert sorted(rank for rank, _ in Watched.loaded) == [0, 1, 2, 3], "each was loaded once"
    assert len({thread for _, thread in Watched.loaded}) == 1
    assert place() @ pool


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


def test_sweep_has_a_trial_per_combination_despite_failures(pool: sky.Compute) -> None:
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


def test_sweep_trials_are_yielded_as_they_complete(pool: sky.Compute, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    trials = sky.sweep(waits, n=[1, 0], gate=str(gate)) > pool
    coming = trials.as_completed()
    assert next(coming).value == 0 and trials[0].outcome == "waiting"
    gate.touch()
    assert next(coming).value == 1 and [t.value for t in trials.wait()] == [1, 0]


def test_broadcast_sweep_runs_each_combination_on_all_ranks_in_turn(pool: sky.Compute) -> None:
    trials = sky.sweep(ranked, n=[1, 3, 2]) @ pool
    assert [t.value for t in trials] == [[100, 101, 102, 103], None, [200, 201, 202, 203]]
    assert isinstance(trials[1].error, sky.RunError) and trials[1].outcome == "raised"
    assert trials[2].numbers == {"n": 2.0} and len({t.run for t in trials}) == 3


@sky.function
def side(n: int, folder: str) -> list[int]:
    """Run until the gang beside it has begun, too."""
    info = sky.instance_info()
    Path(folder, f"{n}.{info.rank}").touch()
    if n < 2:
        wait_until(lambda: all(Path(folder, f"{other}.0").exists() for other in (0, 1)))
    if n == 3 and info.rank == 1:
        raise KeyError(n)
    return [info.rank, info.world_size, len(list(Path(folder).iterdir()))]


def test_sweep_on_gangs_of_two_nodes_runs_trials_concurrently(pool: sky.Compute, tmp_path: Path) -> None:
    trials = sky.sweep(side, n=range(5), folder=str(tmp_path)).with_nodes(2).on_all(pool)
    ended = [trial.place for trial in trials.as_completed()]
    assert sorted(ended) == [0, 1, 2, 3, 4]
    assert [[(rank, world) for rank, world, _ in t.value] for t in trials if t.ok] == [[(0, 2), (1, 2)]] * 4
    assert [t.outcome for t in trials] == ["returned"] * 3 + ["raised", "returned"], "the others go on"
    assert isinstance(trials[3].error, sky.RunError) and isinstance(trials[3].error.__cause__, KeyError)
    runs = [pool.pool.view.runs[t.run] for t in trials]
    assert not set(runs[0].nodes) & set(runs[1].nodes)


def test_trial_table_of_a_gang_sweep_is_found_by_any_of_its_runs(pool: sky.Compute) -> None:
    trials = sky.sweep(ranked, n=[1, 2, 4]).with_nodes(1) @ pool
    from skyward_core.client.sweep_launch_and_resumption import trial_table_source

    runs = pool.pool.view.runs
    wait_until(lambda: all(runs[trial.run].state == "done" for trial in trials))
    for trial in trials:
        view = runs[trial.run]
        board: TrialTableSource = trial_table_source(pool.pool.context.ledger, pool.pool.row.key, view, {})
        table = board.table(view.id, view.tasks, pool.pool.view.metrics, runs)
        assert [(row.arguments, row.value, row.run) for row in table.rows] == [
            ((str(each.arguments["n"]),), each.value[0], each.run) for each in trials
        ]


def test_sweep_gangs_larger_than_the_pool_are_rejected(pool: sky.Compute) -> None:
    before = len(pool.pool.view.runs)
    with pytest.raises(UsageError, match=r"needs 5 nodes, but pool .* has 4 nodes"):
        sky.sweep(ranked, n=[1, 2]).with_nodes(5) @ pool
    with pytest.raises(UsageError, match="applies to @ only: with >> each combination runs on one rank"):
        sky.sweep(ranked, n=[1, 2]).with_nodes(2) >> pool
    with pytest.raises(ValueError, match="a positive integer"):
        sky.sweep(ranked, n=[1, 2]).with_nodes(0)
    assert len(pool.pool.view.runs) == before


def test_cancelled_gang_sweep_starts_no_further_trial(pool: sky.Compute, tmp_path: Path) -> None:
    trials = sky.sweep(waits, n=[0, 1, 1, 1, 1], gate=str(tmp_path / "never")).with_nodes(2).on_all(pool)
    wait_until(lambda: trials[0].ok)
    trials.cancel()
    with pytest.raises(Cancelled):
        trials.wait()
    assert trials[0].value == [0, 0] and not any(t.ok for t in trials[1:])
    wait_until(lambda: all(run.state != "running" for run in pool.pool.view.runs.values()))


def test_cancelled_sweep_has_the_completed_trials(pool: sky.Compute, tmp_path: Path) -> None:
    trials = sky.sweep(waits, n=[0, 1, 1, 1, 1], gate=[str(tmp_path / "never")]) > pool
    wait_until(lambda: trials[0].ok)
    threading.Thread(target=trials.cancel).start()
    with pytest.raises(Cancelled):
        trials.wait()
    assert trials[0].value == 0 and not any(t.ok for t in trials[1:])


def test_invalid_sweep_is_rejected() -> None:
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
