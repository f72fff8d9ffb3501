"""Maps over items, and streamed arguments and results: lazy, in order, each value once."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
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
from skyward_core.pool.agent_link import Link
from skyward_core.pool.runs.iterator_argument_stream import ArgumentStream
from skyward_core.pool.runs.run import Run
from tests.support.faults import agent_pids, on_loop
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


def test_map_cancelled_by_another_client_ends(home: Path, tmp_path: Path) -> None:
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


def test_map_cancelled_between_two_items_ends(home: Path) -> None:
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


def test_map_failure_has_all_values_computed_before_it(home: Path) -> None:
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


def test_map_failure_has_values_after_a_stopped_item(home: Path) -> None:
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


def test_map_values_keep_item_order_in_a_single_run(pool: sky.Compute) -> None:
    before = set(pool.pool.view.runs)
    assert list(pool.map(square, range(3000))) == [number * number for number in range(3000)]
    assert sorted(pool.map(square, (n for n in range(50)), ordered=False)) == sorted(n * n for n in range(50))
    assert list(pool.map(lambda x: x + 1, [1, 2])) == [2, 3] and list(pool.map(square, [])) == []
    runs = [run for run in pool.pool.view.runs.values() if run.id not in before]
    assert [run.kind for run in runs] == ["map"] * 4
    wait_until(lambda: {run.state for run in runs} == {"done"}, what="their ends")
    assert runs[0].counts == {"returned": 4} and set(runs[0].tasks) == set(range(4))
    assert sum(task.items for task in runs[0].tasks.values()) == 3000


def test_map_reads_endless_items_only_with_bounded_read_ahead(pool: sky.Compute) -> None:
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


def test_calls_inside_a_map_loop_find_free_ranks(pool: sky.Compute) -> None:
    assert [square(n) >> pool for n in pool.map(square, range(20))] == [n**4 for n in range(20)]
    assert {rank for rank in pool.map(where, range(200))} == {0, 1, 2, 3}


def test_first_failing_item_ends_the_map_with_its_cause(pool: sky.Compute) -> None:
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


def test_map_item_that_exceeds_the_timeout_is_stopped(pool: sky.Compute) -> None:
    with pytest.raises(TimeoutError, match=r"timeout of 0\.2 s"):
        list(pool.map(endless, range(2), timeout=0.2))
    with pytest.raises(ValueError, match="timeout must be more than 0"):
        pool.map(square, [], timeout=0)
    for wrong in (square(3), 3):
        with pytest.raises(TypeError, match="map"):
            pool.map(wrong, [])  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="cannot be called with these arguments"):
        list(pool.map(lambda: 1, [1]))


def test_large_map_items_leave_no_files(pool: sky.Compute) -> None:
    arrays = (np.zeros(20_000 + number) for number in range(6))
    assert list(pool.map(length, arrays)) == [20_000 + number for number in range(6)]
    assert not list(Path(pool.pool.archive.folder).glob("blob*"))
    assert list(pool.map(lambda n: np.full(20_000, n), range(3)))[2][7] == 2


def test_rank_dying_in_a_map_is_named_and_observers_see_one_run(pool: sky.Compute) -> None:
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


def test_exit_with_status_0_in_a_map_item_returns_none(pool: sky.Compute) -> None:
    assert list(pool.map(leaves, range(200))) == [0, None, *range(2, 200)]


def test_named_pool_methods_equal_the_operators(pool: sky.Compute) -> None:
    assert pool.run(square(3)) == 9 and pool.broadcast(square(3)) == [9] * 4
    assert pool.run(square(2) & square(3)) == (4, 9) and pool.run_async(square(4)).result() == 16
    assert pool.current_nodes() == 4 and pool.concurrency == 4 and pool.is_active
    assert not sky.Compute(provider=sky.Local()).is_active


COUNT = 120
LARGE = 100_000  # bytes; travels as a file of the spool


@sky.function
def values(count: int) -> Iterator[object]:
    for i in range(count):
        time.sleep(0.002)
        yield i if i % 10 else (i, b"x" * LARGE)


def number(value: object) -> object:
    return value[0] if isinstance(value, tuple) else value


def drop_link(compute: sky.Compute) -> None:
    on_loop(lambda: compute.pool.links[0]._pipe and compute.pool.links[0]._pipe.close())  # type: ignore[func-returns-value]


def kill_agent(compute: sky.Compute) -> None:
    """Kill an agent and wait for its successor, because the node would otherwise count as lost."""
    link = compute.pool.links[0]
    pid = link.welcome["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: link.up and link.welcome["pid"] != pid, what="a new agent")


def test_yielded_values_arrive_once_in_order_over_dropped_links(home: Path) -> None:
    with sky.Compute(nodes=1, options=sky.Options(console=False)) as compute:
        got = []
        for value in values(COUNT) >> compute:
            got.append(number(value))
            if len(got) % 12 == 5:
                drop_link(compute)
        assert got == list(range(COUNT))
        spool = Path(compute.pool.context.machines[0].extra["folder"], "spool")
        wait_until(lambda: not [*spool.glob("*.item"), *spool.glob("*.yields")], what="the spool's end of it")


def test_yielded_values_arrive_once_in_order_from_killed_agents(home: Path) -> None:
    with sky.Compute(nodes=1, options=sky.Options(console=False)) as compute:
        got = []
        for value in values(COUNT) >> compute:
            got.append(number(value))
            if len(got) in (5, 60):
                kill_agent(compute)
        assert got == list(range(COUNT))


def test_reader_gets_values_yielded_while_its_link_was_down(home: Path, tmp_path: Path) -> None:
    """The rank yields more than a window of values while no client reads them."""
    mark = tmp_path / "made"

    def produce() -> Iterator[int]:
        yield from range(200)
        mark.touch()

    with sky.Compute(nodes=1, options=sky.Options(console=False)) as compute:
        taken = sky.function(produce)() >> compute
        assert next(taken) == 0
        link = compute.pool.links[0]
        there = link.transport.socket  # type: ignore[attr-defined]

        def cut() -> None:
            link.transport.socket = there.with_name("elsewhere")  # type: ignore[attr-defined]
            link._pipe.close()  # type: ignore[union-attr]

        on_loop(cut)
        wait_until(mark.exists, what="the generator's end")
        os.kill(link.welcome["pid"], signal.SIGKILL)  # what waits for the reader waits on the disk
        link.transport.socket = there  # type: ignore[attr-defined]
        assert list(taken) == list(range(1, 200))


def test_lost_yielded_value_is_an_error_that_names_its_position(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sky.Compute(nodes=1, options=sky.Options(console=False)) as compute:
        taken = values(COUNT) >> compute
        assert number(next(taken)) == 0
        pass_on = Run.on_item

        def lose_one(run: Run, link: Link, header: Any, body: bytes) -> None:
            if header["seq"] != 40:
                pass_on(run, link, header, body)

        monkeypatch.setattr(Run, "on_item", lose_one)
        got = []
        with pytest.raises(sky.RunError, match=r"value 40 of values\(\).* was lost") as caught:
            for value in taken:
                got.append(number(value))
        assert got == list(range(1, 40))
        assert caught.value.root_cause.outcome == "lost"


@sky.function
def total(values: Any) -> int:
    return sum(values)


@sky.function
def means(data: Iterator[float]) -> list[float]:
    seen, so_far = 0.0, []
    for number, value in enumerate(data, 1):
        seen += value
        so_far.append(seen / number)
    return so_far


@sky.function
def running(data: Iterator[int], step: int = 1) -> Iterator[int]:
    seen = 0
    for value in data:
        seen += value * step
        yield seen


@sky.function
def first(values: Iterator[int], count: int) -> list[int]:
    return [next(values) for _ in range(count)]


@sky.function
def in_a_thread(values: Iterator[int]) -> int:
    found: list[int] = []
    reader = threading.Thread(target=lambda: found.extend(values))
    reader.start()
    reader.join()
    return sum(found)


@sky.function
def in_a_child(values: Iterator[int]) -> tuple[int, str]:
    got = next(values)
    readable, writable = os.pipe()
    if not os.fork():
        try:
            os.write(writable, str(next(values)).encode())
        except RuntimeError as error:
            os.write(writable, str(error).encode())
        os._exit(0)
    os.wait()
    return got + sum(values), os.read(readable, 1000).decode()


@sky.function
def sizes(values: Any) -> list[int]:
    return [len(value) for value in values]


def test_iterator_argument_is_streamed_to_ranks(pool: sky.Compute) -> None:
    assert total(n for n in range(100)) >> pool == 4950
    assert means(iter([1.0, 2.0, 3.0])) >> pool == [1.0, 1.5, 2.0]
    assert means([1.0, 3.0]) @ pool == [[1.0, 2.0]] * 4  # type: ignore[arg-type]  # upstream takes any iterable
    assert total(n for n in range(100)) @ pool == [4950] * 4
    assert in_a_thread(iter(range(100))) >> pool == 4950
    assert total(n for n in list[int]()) >> pool == 0
    assert (total(n for n in range(3)) & total(n for n in range(4))) >> pool == (3, 6)
    assert (total(n for n in range(3)) > pool).result() == 3
    assert sizes(bytes(200_000) for _ in range(3)) >> pool == [200_000] * 3


def test_iterator_used_for_two_arguments_is_rejected(pool: sky.Compute) -> None:
    one = iter(range(10))
    with pytest.raises(sky.UsageError, match="'data' is an iterator that another argument uses, too"):
        (means(one) & running(one)) >> pool  # type: ignore[arg-type]
    assert means(one) >> pool == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5]


def test_iterator_argument_and_yielded_values_are_streamed_together(pool: sky.Compute) -> None:
    sent: list[int] = []

    def source() -> Iterator[int]:
        for number in range(10**9):
            sent.append(number)
            yield number

    values: Any = running(source(), step=2) >> pool
    assert [next(values) for _ in range(4)] == [0, 2, 6, 12]
    values.close()
    assert len(sent) < 1000, "no more is read than is soon to be worked on"
    assert [list(each) for each in running(iter([1, 2])) @ pool] == [[1, 3]] * 4


def test_group_may_contain_generator_functions(pool: sky.Compute) -> None:
    some, other, last = (running(iter([1, 2])) & total([4, 5]) & running(iter([3]))) >> pool
    assert (list(some), other, list(last)) == ([1, 3], 9, [3])
    with pytest.raises(sky.UsageError, match="Remove stream=True"):
        sky.gather(running(iter([1])), stream=True) >> pool


@pytest.mark.proof("0.5 s of a processor")
def test_generators_in_a_large_group_do_not_block_each_other(pool: sky.Compute) -> None:
    calls = [running(iter([1] * 300)) for _ in range(6)]
    *values, last = sky.gather(*calls, total([1])) >> pool  # type: ignore[misc]
    assert last == 1
    assert list(zip(*values, strict=True)) == [(n,) * 6 for n in range(1, 301)]


def test_source_iterator_is_closed_when_its_call_ends(pool: sky.Compute) -> None:
    closed = threading.Event()

    def source() -> Iterator[int]:
        try:
            yield from range(10**9)
        finally:
            closed.set()

    assert first(source(), 3) @ pool == [[0, 1, 2]] * 4
    assert closed.wait(30)


def test_exception_of_a_source_iterator_is_the_cause(pool: sky.Compute) -> None:
    def source() -> Iterator[int]:
        yield 1
        raise LookupError("no more pages")

    with pytest.raises(LookupError, match="no more pages"):
        total(source()) @ pool
    with pytest.raises(sky.NotPicklableError, match="Cannot pickle value 1 of argument 'values'"):
        total(value for value in (1, threading.Lock())) >> pool


def test_system_exit_in_a_source_iterator_is_a_runtime_error_in_ranks(pool: sky.Compute) -> None:
    def source() -> Iterator[int]:
        yield 1
        raise SystemExit(0)

    with pytest.raises(RuntimeError, match="argument 'values' ended with SystemExit at value 1"):
        total(source()) >> pool


def test_rank_does_not_wait_for_values_it_does_not_read(pool: sky.Compute) -> None:
    gate = threading.Event()

    def source() -> Iterator[int]:
        yield 1
        gate.wait(60)

    try:
        assert first(source(), 1).on_all(pool).result(timeout=30) == [[1]] * 4
    finally:
        gate.set()


def test_forked_child_cannot_read_an_iterator_argument(pool: sky.Compute) -> None:
    got, text = in_a_child(iter(range(100))) >> pool
    assert got == 4950
    assert "'values' cannot be read in a forked process" in text


def test_request_for_values_no_longer_held_is_answered_with_an_error() -> None:
    sent: list[Any] = []
    come = threading.Condition()

    def send(frames: Any) -> None:
        with come:
            sent.extend(frames)
            come.notify_all()

    feeding = ArgumentStream("run", 0, "values", iter(range(100)), pickle.dumps, [0], send)
    want: Any = {"t": "want", "run": "run", "i": 0, "arg": 0}
    feeding.on_want(want | {"next": 0, "until": 32, "again": True})
    feeding.on_want(want | {"next": 20, "until": 52})
    with come:
        assert come.wait_for(lambda: [seq for _, about, _ in sent if (seq := about["seq"]) == 51], 30)
        values = [(about["seq"], pickle.loads(data)) for _, about, data in sent]
    assert all(number == value for number, value in values)
    feeding.on_want(want | {"next": 0, "until": 32, "again": True})
    index, about, data = sent[-1]
    assert (index, about["seq"], about["ends"]) == (0, 0, "error")
    assert "value 0 of argument 'values' was consumed by an earlier attempt" in str(pickle.loads(data))
    feeding.on_want(want | {"next": 52, "until": 84})
    with come:
        assert come.wait_for(lambda: sent[-1][1]["seq"] == 83, 30)
    feeding.close()


def test_killed_agent_loses_no_value_of_an_iterator_argument(pool: sky.Compute, tmp_path: Path) -> None:
    gate = threading.Event()

    def source() -> Iterator[int]:
        for number in range(200):
            if number == 100:
                assert gate.wait(60)
            yield number

    future = total(source()) > pool
    wait_until(lambda: pool.pool.view.runs[future.run].tasks, what="it has begun")
    node = next(iter(pool.pool.context.registry.runs[future.run]._where.values())).node
    os.kill(agent_pids(pool)[node], signal.SIGKILL)
    gate.set()
    assert future.result(timeout=60) == sum(range(200))


def test_claim_of_a_run_with_an_iterator_of_another_client_fails(home: Path) -> None:
    options = sky.Options(console=False, grace=1.0)
    with sky.Compute(nodes=1, name="fed", options=options):
        gate = threading.Event()

        def source() -> Iterator[int]:
            yield 1
            gate.wait(60)

        first_client = sky.attach("fed")
        future = total(source()) > first_client
        wait_until(lambda: first_client.pool.view.runs[future.run].tasks, what="it has begun")
        first_client.detach()
        with sky.attach("fed") as second, pytest.raises(sky.RunError, match="by a client that has exited"):
            second.wait(future.run)
        gate.set()
