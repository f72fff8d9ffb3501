"""A function over items, on real processes: lazily, in order, as one run."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skyward_core as sky
from tests.support.sessions import new_session
from tests.support.task_places import pool_rank
from tests.support.waiting import wait_until


@sky.function
def square(number: int) -> int:
    return number * number


@sky.function
def refuses(number: int) -> int:
    if number == 40:
        raise LookupError(f"no {number}")
    return number


@sky.function
def marks_and_waits(path: str) -> None:
    Path(path).touch()
    time.sleep(60)


@sky.function
def leaves(number: int) -> int:
    if number == 1:
        raise SystemExit(0)
    if number == 2 and not os.fork():
        return -1  # a child goes no further
    return number


@sky.function
def where(number: int) -> int:
    print("item", number)
    return pool_rank()


@sky.function
def length(array: Any) -> int:
    return len(array)


@sky.function
def slowly(number: int) -> int:
    time.sleep(0.02)
    return number


@sky.function
def endless(number: int) -> None:
    while True:
        time.sleep(0.01)


def test_a_map_that_another_client_cancels_ends(home: Path, tmp_path: Path) -> None:
    marks = [str(tmp_path / f"{number}.begun") for number in range(40)]
    with ThreadPoolExecutor(1) as beside, sky.Compute(provider=sky.Local(), nodes=2) as compute:
        values = beside.submit(lambda: list(compute.map(marks_and_waits, marks)))
        wait_until(lambda: any(tmp_path.glob("*.begun")))
        (run,) = compute.pool.context.registry.runs
        with new_session() as session:
            session.attach(compute.name).result(30)
            session.cancel(compute.name, run).result(30)
        with pytest.raises(sky.Cancelled, match="another client"):
            values.result(10)


def test_a_map_that_is_cancelled_between_two_items_ends(home: Path) -> None:
    cancelled, over = threading.Event(), threading.Event()

    def items() -> Iterator[int]:
        yield 1
        cancelled.wait(60)
        yield from itertools.takewhile(lambda _: not over.is_set(), itertools.count(2))

    options = sky.Options(console=False)
    with ThreadPoolExecutor(1) as beside, sky.Compute(nodes=2, options=options) as compute:
        ended = beside.submit(lambda: deque(compute.map(square, items()), maxlen=0))
        try:
            view = compute.pool.view
            wait_until(lambda: any(task.items for run in view.runs.values() for task in run.tasks.values()))
            (run,) = compute.pool.context.registry.runs
            with new_session() as session:
                session.attach(compute.name).result(30)
                session.cancel(compute.name, run).result(30)
            cancelled.set()
            with pytest.raises(sky.Cancelled, match="another client"):
                ended.result(60)
        finally:
            cancelled.set()
            over.set()


def test_a_failure_has_all_values_that_were_computed_before_it(home: Path) -> None:
    def refuses_late(number: int) -> int:
        if number == 4100:
            raise LookupError(f"no {number}")
        return number

    before = {number: number for number in range(4100)}
    with sky.Compute(nodes=1, options=sky.Options(console=False)) as compute:
        for ordered in (True, False):
            with pytest.raises(LookupError) as caught:
                list(compute.map(refuses_late, range(5000), ordered=ordered))
            assert isinstance(caught.value, sky.RunError)
            assert caught.value.results.items() >= before.items()
            assert vars(caught.value.__cause__).keys() == {"__notes__"}
        got: list[int] = []
        with pytest.raises(LookupError) as caught:
            got.extend(compute.map(refuses_late, itertools.count()))
        assert isinstance(caught.value, sky.RunError)
        assert set(got).isdisjoint(caught.value.results), "what a loop over endless items has had is not held"
        assert (dict(enumerate(got)) | caught.value.results).items() >= before.items()


def test_a_failure_has_the_values_behind_an_item_that_was_stopped(home: Path) -> None:
    def waits_first(number: int) -> int:
        while number == 0:
            time.sleep(0.01)
        if number == 2:
            raise LookupError("no 2")
        return number

    options = sky.Options(console=False, grace=0.1)
    pool = sky.Compute(nodes=1, worker=sky.Worker(ranks_per_node=2), options=options)
    with pool as compute, pytest.raises(LookupError) as caught:
        list(compute.map(waits_first, range(3), timeout=60))
    assert isinstance(caught.value, sky.RunError) and caught.value.results == {1: 1}


def test_values_come_in_the_order_of_the_items_and_it_is_one_run(pool: sky.Compute) -> None:
    before = set(pool.pool.view.runs)
    assert list(pool.map(square, range(3000))) == [number * number for number in range(3000)]
    assert sorted(pool.map(square, (n for n in range(50)), ordered=False)) == sorted(n * n for n in range(50))
    assert list(pool.map(lambda x: x + 1, [1, 2])) == [2, 3] and list(pool.map(square, [])) == []
    runs = [run for run in pool.pool.view.runs.values() if run.id not in before]
    assert [run.kind for run in runs] == ["map"] * 4
    wait_until(lambda: {run.state for run in runs} == {"done"}, what="their ends")
    assert runs[0].counts == {"returned": 4} and set(runs[0].tasks) == set(range(4))
    assert sum(task.items for task in runs[0].tasks.values()) == 3000


def test_no_more_is_read_of_endless_items_than_is_soon_needed(pool: sky.Compute) -> None:
    read = itertools.count()

    def items() -> Iterator[int]:
        for number in itertools.count():
            next(read)
            yield number

    values = pool.map(slowly, items())
    assert [next(values) for _ in range(3)] == [0, 1, 2]
    assert next(read) < 100
    values.close()  # type: ignore[attr-defined]
    assert (square(3) >> pool) == 9


def test_calls_within_its_loop_find_ranks_that_are_free(pool: sky.Compute) -> None:
    assert [square(n) >> pool for n in pool.map(square, range(20))] == [n**4 for n in range(20)]
    assert {rank for rank in pool.map(where, range(200))} == {0, 1, 2, 3}


def test_the_first_failure_ends_it_with_its_cause(pool: sky.Compute) -> None:
    got: list[int] = []
    with pytest.raises(LookupError, match="no 40") as caught:
        got.extend(pool.map(refuses, range(10_000)))
    assert isinstance(caught.value, sky.RunError) and isinstance(caught.value.__cause__, LookupError)
    assert caught.value.__cause__.__notes__ == ["while it worked on item 40 of the map"]
    run = pool.pool.view.runs[caught.value.run]
    wait_until(lambda: run.state == "failed", what="its end")
    assert run.root_cause is not None and run.root_cause.type == "LookupError"

    assert got == list(range(len(got)))
    computed = caught.value.results
    assert computed.keys() >= set(got) and 40 not in computed
    assert all(number == value for number, value in computed.items())

    def broken() -> Iterator[int]:
        yield 1
        raise OSError("no more items")

    with pytest.raises(OSError, match="no more items"):
        list(pool.map(square, broken()))
    with pytest.raises(sky.NotPicklableError, match="lock"):
        list(pool.map(square, [__import__("threading").Lock()]))
    assert (square(2) @ pool) == [4] * 4


def test_an_item_that_takes_too_long_is_stopped(pool: sky.Compute) -> None:
    with pytest.raises(TimeoutError, match=r"timeout of 0\.2 s"):
        list(pool.map(endless, range(2), timeout=0.2))
    with pytest.raises(ValueError, match="timeout must be more than 0"):
        pool.map(square, [], timeout=0)
    for wrong in (square(3), 3):
        with pytest.raises(TypeError, match="map"):
            pool.map(wrong, [])  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="cannot be called with these arguments"):
        list(pool.map(lambda: 1, [1]))


def test_large_items_travel_and_leave_no_files(pool: sky.Compute) -> None:
    arrays = (np.zeros(20_000 + number) for number in range(6))
    assert list(pool.map(length, arrays)) == [20_000 + number for number in range(6)]
    assert not list(Path(pool.pool.archive.folder).glob("blob*"))
    assert list(pool.map(lambda n: np.full(20_000, n), range(3)))[2][7] == 2


def test_a_rank_that_dies_is_named_and_another_client_sees_one_run(pool: sky.Compute) -> None:
    with sky.attach(pool.name) as other:
        assert len(list(pool.map(where, range(300)))) == 300
        newest = next(reversed(pool.pool.view.runs))
        wait_until(lambda: other.view.runs[newest].state == "done", what="the end of it elsewhere")
        assert sum(task.items for task in other.view.runs[newest].tasks.values()) == 300
        with pytest.raises(sky.PoolError, match="results of a map"):
            other.wait(newest)
        with pytest.raises(sky.RunError, match="status 7"):
            list(pool.map(lambda number: os._exit(7), range(3)))
        wait_until(lambda: other.runs[-1].state == "failed", what="its failure elsewhere")


def test_who_leaves_gives_nothing_as_in_a_call_by_itself(pool: sky.Compute) -> None:
    assert list(pool.map(leaves, range(200))) == [0, None, *range(2, 200)]


def test_the_same_by_names(pool: sky.Compute) -> None:
    assert pool.run(square(3)) == 9 and pool.broadcast(square(3)) == [9] * 4
    assert pool.run(square(2) & square(3)) == (4, 9) and pool.run_async(square(4)).result() == 16
    assert pool.current_nodes() == 4 and pool.concurrency == 4 and pool.is_active
    assert not sky.Compute(provider=sky.Local()).is_active
