"""A call as a value, and the operators that send it somewhere."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest

import skyward_core as sky
from skyward_core.model.function import Function, PendingFunction, PendingGroup, check_call
from skyward_core.model.run_future import RunFuture


class Pool:
    """Notes what it is given."""

    def run_one(self, pending: PendingFunction[Any]) -> Any:
        return ("one", pending.local())

    def run_all(self, pending: PendingFunction[Any]) -> list[Any]:
        return ["all", pending.local()]

    def run_group(self, group: PendingGroup[Any]) -> Any:
        return tuple(item.local() for item in group.items), group.stream, group.ordered

    def submit(self, pending: PendingFunction[Any]) -> RunFuture[Any]:
        nothing: Any = None
        future: RunFuture[Any] = RunFuture("r1", nothing)
        future.set_result(pending.local())
        return future

    def submit_all(self, pending: PendingFunction[Any]) -> RunFuture[list[Any]]:
        raise NotImplementedError

    def submit_group(self, group: PendingGroup[Any]) -> RunFuture[Any]:
        raise NotImplementedError


@sky.function
def add(a: int, b: int = 10) -> int:
    """Adds."""
    return a + b


@sky.function(timeout=60)
def slow() -> str:
    return "slow"


@sky.function
def count(n: int) -> Iterator[int]:
    yield from range(n)


POOL = Pool()


def test_a_call_runs_nothing_and_keeps_its_arguments() -> None:
    ran: list[int] = []
    pending = sky.function(ran.append)(1)
    assert ran == []
    assert isinstance(pending, PendingFunction)
    assert (pending.args, pending.kwargs, pending.timeout, pending.streams) == ((1,), {}, None, False)
    assert add(1, b=2).kwargs == {"b": 2}


def test_operators() -> None:
    assert add(1) >> POOL == ("one", 11)
    assert add(1) @ POOL == ["all", 11]
    assert (add(1) > POOL).result() == 11
    assert (add(1) & slow()) >> POOL == ((11, "slow"), False, True)


def test_groups_grow_from_either_side_and_stay_in_order() -> None:
    one, two, three = add(1, 0), add(2, 0), add(3, 0)
    for group in ((one & two) & three, one & (two & three), sky.gather(one, two, three)):
        assert group >> POOL == ((1, 2, 3), False, True)
    assert sky.gather() >> POOL == ((), False, True)
    assert sky.gather(one, stream=True, ordered=False) >> POOL == ((1,), True, False)
    assert (sky.gather(one, stream=True) & two) >> POOL == ((1, 2), True, True)


def test_a_function_stays_what_it_was() -> None:
    assert (add.__name__, add.__doc__, add.__module__) == ("add", "Adds.", __name__)  # type: ignore[attr-defined]
    assert add.local(1, b=1) == 2
    assert repr(add) == "<sky.function add>"
    assert repr(add(1)) == "<add(…) not run yet: use >> or @ with a pool>"


def test_names_of_things_that_have_none() -> None:
    assert sky.function(functools.partial(add.local, 1))().name == "partial"
    assert sky.function(lambda: 0)().name == "<lambda>"


def test_generator_functions_are_seen_through_decorators() -> None:
    @functools.wraps(count.fn)
    def wrapped(*args: Any) -> Any:
        return count.fn(*args)

    assert count(3).streams
    assert sky.function(wrapped)(3).streams
    assert not add(1).streams


def test_time_limits() -> None:
    assert slow().timeout == 60
    pending = add(1).with_timeout(0.5)
    assert pending.timeout == 0.5
    assert pending.with_timeout(None).timeout is None
    assert slow().with_timeout(5).timeout == 5
    assert slow().timeout == 60, "a value: others are not changed"


@pytest.mark.parametrize("seconds", [0, -1, -0.5, float("nan"), "10"])
def test_time_limits_that_make_no_sense(seconds: Any) -> None:
    with pytest.raises(ValueError, match="timeout must be more than 0 seconds"):
        sky.function(timeout=seconds)(add.fn)
    with pytest.raises(ValueError, match="timeout must be more than 0 seconds"):
        add(1).with_timeout(seconds)


UNCALLED = [
    (lambda f: f >> POOL, "f(...) >> pool"),
    (lambda f: f >> sky, "f(...) >> pool"),
    (lambda f: f @ POOL, "f(...) @ pool"),
    (lambda f: f > POOL, "f(...) > pool"),
    (lambda f: f & add, "f(...) & add(...)"),
    (lambda f: f & add(1), "f(...) & add(...)"),
    (lambda f: add(1) & f, "... & f(...)"),
    (lambda f: add(1) & add(2) & f, "... & f(...)"),
    (lambda f: sky.gather(add(1), f), "sky.gather(f(...), ...)"),
]


@pytest.mark.parametrize(("operate", "write"), UNCALLED, ids=[write for _, write in UNCALLED])
def test_a_function_without_its_call(operate: Any, write: str) -> None:
    def f() -> None: ...

    with pytest.raises(TypeError) as raised:
        operate(sky.function(f))
    assert str(raised.value) == f"f is a function, and what runs is a call of it: call it, {write}"


def test_a_function_that_is_decorated_twice_is_one() -> None:
    twice: Any = sky.function(slow)
    assert twice().local() == "slow" and twice().timeout == 60 and repr(twice) == "<sky.function slow>"
    assert sky.function(timeout=5)(slow)().timeout == 5  # type: ignore[arg-type]


def test_a_call_that_nobody_sent_has_no_value() -> None:
    call: Any = add(1)
    said = (
        r"^add\(\.\.\.\) has not run, and has no value yet: send it to a pool, value = add\(\.\.\.\) >> pool, "
        r"or call it here, add\.local"
    )
    with pytest.raises(TypeError, match=said):
        call["loss"]
    with pytest.raises(TypeError, match=said):
        for _ in call:
            pass
    with pytest.raises(AttributeError, match=said):
        call.result()
    for use in (
        lambda: call + 1,
        lambda: 2 * call,
        lambda: call / 2,
        lambda: float(call),
        lambda: sum([call]),
    ):
        with pytest.raises(TypeError, match=said):
            use()
    assert not hasattr(call, "_repr_html_") and copy.copy(call).args == (1,)


def test_a_list_of_calls_is_no_group() -> None:
    with pytest.raises(TypeError, match=r"number 0 is list: spread it, sky.gather\(\*calls\)"):
        sky.gather([add(1), add(2)])  # type: ignore[call-overload]


@pytest.mark.parametrize("operate", [lambda p, x: p >> x, lambda p, x: p @ x, lambda p, x: p > x])
def test_something_else_than_a_pool_is_a_clear_error(operate: Any) -> None:
    for wrong in (4, None, add, functools):
        with pytest.raises(TypeError, match=r"stands a pool \(with sky.Compute"):
            operate(add(1), wrong)


def test_groups_of_something_else_are_clear_errors() -> None:
    with pytest.raises(TypeError, match="add is a function, and what runs is a call of it"):
        sky.gather(add(1), add)  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        add(1) & 5  # type: ignore[operator]
    with pytest.raises(TypeError, match="a group runs with >>"):
        (add(1) & add(2)) @ POOL
    with pytest.raises(TypeError, match="decorates a function, not int"):
        sky.function(5)  # type: ignore[call-overload]


def test_decorators_of_ours_may_stand_above_or_below() -> None:
    def loud(fn: Any) -> Any:
        return lambda *args: str(fn(*args)).upper()

    wrapped = slow.__skyward_wrap__(loud)
    assert isinstance(wrapped, Function)
    assert (wrapped.local(), wrapped.timeout) == ("SLOW", 60)


class Trainer:
    """Has methods that run on a pool."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    @sky.function(timeout=5)
    def train(self, epochs: int = 1) -> float:
        """Trains."""
        return self.rate * epochs

    @staticmethod
    @sky.function
    def plain(x: int) -> int:
        return x

    smallest = sky.function(min)


def test_a_method_has_its_object() -> None:
    pending = Trainer(2.0).train(3)
    assert (pending.name, pending.timeout, pending.local()) == ("train", 5, 6.0)
    assert pickle.loads(cloudpickle.dumps(pending)).local() == 6.0, "and takes it along"
    assert Trainer.train(Trainer(1.0), 3).local() == 3.0
    assert Trainer(2.0).plain(4).local() == 4 and Trainer(2.0).smallest(4, 3).local() == 3  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"train\(epochs: 'int' = 1\).* cannot be called so"):
        check_call(Trainer(2.0).train(1, 2), Trainer(2.0).train.fn)  # type: ignore[call-arg]


def test_an_argument_too_much_is_refused_at_the_call() -> None:
    @sky.function
    @sky.stdout(only="head")
    def fit(a: int, /, b: int = 2, *, c: int = 3) -> int:
        return a + b + c

    @sky.function
    def open_to_all(a: int, *rest: int, **more: int) -> int:
        return a

    class Model:
        @sky.function
        def score(self, x: int) -> int:
            return x

    assert fit(1, b=3, c=4).local() == 8 and open_to_all(1, 2, d=4).local() == 1
    assert Model().score(x=2).local() == Model.score(Model(), 2).local() == 2
    not_typed: Any = fit, open_to_all, Model()  # a checker would refuse these, too
    fit_, open_, model = not_typed
    wrong: list[tuple[Any, str]] = [
        (lambda: fit_(1, 2, 3), "fit.* cannot be called so: too many positional arguments"),
        (lambda: fit_(1, epochs=3), "got an unexpected keyword argument 'epochs'"),
        (lambda: fit_(1, 2, b=3), "multiple values for argument 'b'"),
        (lambda: fit_(a=1), "positional.only"),
        (lambda: open_(1, a=2), "multiple values for argument 'a'"),
        (lambda: model.score(1, 2), r"score\(x: 'int'\).* cannot be called so: too many"),
        (lambda: model.score(y=1), "unexpected keyword argument 'y'"),
    ]
    for call, why in wrong:
        with pytest.raises(TypeError, match=why):
            call()


def test_what_is_missing_may_be_given_by_a_decorator() -> None:
    def inject(fn: Any) -> Any:
        return functools.wraps(fn)(lambda *args: fn(*args, rank=7))

    @sky.function
    def place(x: int, rank: int) -> tuple[int, int]:
        return x, rank

    call = place(1)  # type: ignore[call-arg]  # nobody knows yet which plugins its pool has
    check_call(call, inject(call.fn))
    with pytest.raises(TypeError, match="missing a required argument: 'rank'"):
        check_call(call, call.fn)
    # A decorator of ours hands on what it is given, one of the script's may do anything.
    quiet = sky.silent(call.fn)
    with pytest.raises(TypeError, match="missing a required argument: 'rank'"):
        check_call(call, quiet)
    check_call(call, inject(quiet))
    assert sky.function(sky.silent(inject(call.fn)))(1, 2, 3).args == (1, 2, 3)
