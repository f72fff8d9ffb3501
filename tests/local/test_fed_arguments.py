"""Generators as arguments: their values travel one by one while the call goes on."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.pool.runs.run import ArgumentStream
from tests.support.faults import agent_pids
from tests.support.waiting import wait_until


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


def test_values_come_one_by_one(pool: sky.Compute) -> None:
    assert total(n for n in range(100)) >> pool == 4950
    assert means(iter([1.0, 2.0, 3.0])) >> pool == [1.0, 1.5, 2.0]
    assert means([1.0, 3.0]) @ pool == [[1.0, 2.0]] * 4  # type: ignore[arg-type]  # upstream takes any iterable
    assert total(n for n in range(100)) @ pool == [4950] * 4
    assert in_a_thread(iter(range(100))) >> pool == 4950
    assert total(n for n in list[int]()) >> pool == 0
    assert (total(n for n in range(3)) & total(n for n in range(4))) >> pool == (3, 6)
    assert (total(n for n in range(3)) > pool).result() == 3
    assert sizes(bytes(200_000) for _ in range(3)) >> pool == [200_000] * 3


def test_one_iterator_is_one_argument(pool: sky.Compute) -> None:
    one = iter(range(10))
    with pytest.raises(sky.UsageError, match="'data' is an iterator that another argument uses, too"):
        (means(one) & running(one)) >> pool  # type: ignore[arg-type]
    assert means(one) >> pool == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5]


def test_values_go_in_and_out_at_the_same_time(pool: sky.Compute) -> None:
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


def test_a_group_holds_generator_functions(pool: sky.Compute) -> None:
    some, other, last = (running(iter([1, 2])) & total([4, 5]) & running(iter([3]))) >> pool
    assert (list(some), other, list(last)) == ([1, 3], 9, [3])
    with pytest.raises(sky.UsageError, match="Remove stream=True"):
        sky.gather(running(iter([1])), stream=True) >> pool


def test_in_a_group_of_more_calls_than_places_no_generator_holds_up_another(pool: sky.Compute) -> None:
    calls = [running(iter([1] * 300)) for _ in range(6)]
    *values, last = sky.gather(*calls, total([1])) >> pool  # type: ignore[misc]
    assert last == 1
    assert list(zip(*values, strict=True)) == [(n,) * 6 for n in range(1, 301)]


def test_a_source_is_closed_when_its_call_has_ended(pool: sky.Compute) -> None:
    closed = threading.Event()

    def source() -> Iterator[int]:
        try:
            yield from range(10**9)
        finally:
            closed.set()

    assert first(source(), 3) @ pool == [[0, 1, 2]] * 4
    assert closed.wait(30)


def test_what_a_source_raises_is_the_cause(pool: sky.Compute) -> None:
    def source() -> Iterator[int]:
        yield 1
        raise LookupError("no more pages")

    with pytest.raises(LookupError, match="no more pages"):
        total(source()) @ pool
    with pytest.raises(sky.NotPicklableError, match="Cannot pickle value 1 of argument 'values'"):
        total(value for value in (1, threading.Lock())) >> pool


def test_an_exit_of_the_client_is_none_of_the_rank(pool: sky.Compute) -> None:
    def source() -> Iterator[int]:
        yield 1
        raise SystemExit(0)

    with pytest.raises(RuntimeError, match="argument 'values' ended with SystemExit at value 1"):
        total(source()) >> pool


def test_a_rank_that_comes_late_does_not_wait_for_the_next_value(pool: sky.Compute) -> None:
    gate = threading.Event()

    def source() -> Iterator[int]:
        yield 1
        gate.wait(60)

    try:
        assert first(source(), 1).on_all(pool).result(timeout=30) == [[1]] * 4
    finally:
        gate.set()


def test_a_forked_child_gets_no_values(pool: sky.Compute) -> None:
    got, said = in_a_child(iter(range(100))) >> pool
    assert got == 4950
    assert "'values' cannot be read in a forked process" in said


def test_who_asks_for_what_is_no_more_is_told() -> None:
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


def test_nothing_is_lost_when_an_agent_dies_meanwhile(pool: sky.Compute, tmp_path: Path) -> None:
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


def test_who_takes_such_a_run_over_is_told(home: Path) -> None:
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
