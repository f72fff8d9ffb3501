"""What pools say to what stands left of an operator, or is given to a verb, and is no call."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle
import numpy
import pytest

import skyward_core as sky
from skyward_core.model.errors import PoolError


@sky.function
def f(x: int = 1) -> int:
    return x


POOLS: list[Any] = [sky.Compute(provider=sky.Local(), name="right"), sky.sky]


@pytest.mark.parametrize("pool", POOLS, ids=repr)
@pytest.mark.parametrize("left", [None, {"loss": 1}, 3, numpy.zeros(2), numpy.float64(3), lambda: 0], ids=repr)
def test_a_value_left_of_an_operator(pool: Any, left: Any) -> None:
    for sign, operate in {
        ">>": lambda: left >> pool,
        "@": lambda: left @ pool,
        ">": lambda: left > pool,
    }.items():
        with pytest.raises(TypeError, match=f"^left of {sign} stands a call of a function that has @sky.function"):
            operate()


def test_several_calls() -> None:
    pool: Any = POOLS[0]
    with pytest.raises(TypeError, match=r"^several calls are sent as a group: sky\.gather\(\*calls\) >> pool"):
        [f(1), f(2)] >> pool
    with pytest.raises(TypeError, match=r"^a group runs with >>"):
        assert (f(1) & f(2)) > pool  # type: ignore[operator]


def test_a_value_that_no_operator_can_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sky.Compute, "run_one", lambda self, pending: NotImplemented)
    with pytest.raises(TypeError, match=r"^f gave NotImplemented, which no operator can give"):
        f() >> POOLS[0]


VERBS = ("run", "broadcast", "run_async", "start", "stream")


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_without_a_call(verb: str) -> None:
    with pytest.raises(TypeError, match=rf"^compute\.{verb} takes a call: call it, compute\.{verb}\(f\(\.\.\.\)\)$"):
        getattr(POOLS[0], verb)(f)
    with pytest.raises(TypeError, match=r"takes a call, f\(\.\.\.\)|^left of >> stands a call"):
        getattr(POOLS[0], verb)(3)
    with pytest.raises(PoolError, match="not up"):
        getattr(POOLS[0], verb)(f())


def test_a_pool_does_not_travel() -> None:
    for make in (pickle.dumps, cloudpickle.dumps):
        with pytest.raises(TypeError, match=r"^a pool stays with the process that made it"):
            make(POOLS[0])


def test_a_group_where_a_call_is_wanted() -> None:
    with pytest.raises(TypeError, match=r"^compute\.broadcast takes a call, and a group of 2 runs with >>, or by"):
        POOLS[0].broadcast(f(1) & f(2))


def test_a_map_over_several_series() -> None:
    with pytest.raises(TypeError, match=r"^compute\.map takes one series of items.* zip\(a, b\)\)$"):
        POOLS[0].map(pow, [1, 2], [3, 4])


@pytest.mark.parametrize("verb", ["gather", "gather_stream", "run_parallel"])
def test_a_verb_without_a_group(verb: str) -> None:
    for wrong in (f, f(1), [f(1)]):
        with pytest.raises(TypeError, match=rf"^compute\.{verb} takes a group, sky\.gather"):
            getattr(POOLS[0], verb)(wrong)
