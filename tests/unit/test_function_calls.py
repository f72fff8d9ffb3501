"""Function calls, operators, groups, map chunks and the cache of pickled functions."""

from __future__ import annotations

import copy
import functools
import importlib
import itertools
import json
import pickle
import queue
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import skyward_core as sky
from skyward_core.api.map_and_stream import MAX_WAITING_CALLS, ChunkSizer, MapOperation
from skyward_core.model.function import PendingFunction, PendingGroup, check_call
from skyward_core.model.run_future import RunFuture
from skyward_core.tasks.function_pickling import PickleCache
from tests.support.waiting import wait_until


class Pool:
    """Fake pool that records its arguments."""

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
    """Return the sum."""
    return a + b


@sky.function(timeout=60)
def slow() -> str:
    return "slow"


@sky.function
def count(n: int) -> Iterator[int]:
    yield from range(n)


POOL = Pool()


def test_calling_a_function_keeps_arguments_without_running_it() -> None:
    ran: list[int] = []
    pending = sky.function(ran.append)(1)
    assert ran == []
    assert isinstance(pending, PendingFunction)
    assert (pending.args, pending.kwargs, pending.timeout, pending.streams) == ((1,), {}, None, False)
    assert add(1, b=2).kwargs == {"b": 2}


def test_operators_dispatch_calls_to_a_pool() -> None:
    assert add(1) >> POOL == ("one", 11)
    assert add(1) @ POOL == ["all", 11]
    assert (add(1) > POOL).result() == 11
    assert (add(1) & slow()) >> POOL == ((11, "slow"), False, True)


def test_gather_groups_keep_order_of_their_calls() -> None:
    one, two, three = add(1, 0), add(2, 0), add(3, 0)
    for group in ((one & two) & three, one & (two & three), sky.gather(one, two, three)):
        assert group >> POOL == ((1, 2, 3), False, True)
    assert sky.gather() >> POOL == ((), False, True)
    assert sky.gather(one, stream=True, ordered=False) >> POOL == ((1,), True, False)
    assert (sky.gather(one, stream=True) & two) >> POOL == ((1, 2), True, True)


def test_decorated_function_keeps_name_doc_and_local_call() -> None:
    assert (add.__name__, add.__doc__, add.__module__) == ("add", "Return the sum.", __name__)  # type: ignore[attr-defined]
    assert add.local(1, b=1) == 2
    assert repr(add) == "<sky.function add>"
    assert repr(add(1)) == "<add(…), not sent: use >> or @ with a pool>"


def test_generator_function_is_recognized_behind_decorators() -> None:
    @functools.wraps(count.fn)
    def wrapped(*args: Any) -> Any:
        return count.fn(*args)

    assert count(3).streams
    assert sky.function(wrapped)(3).streams
    assert not add(1).streams


def test_with_timeout_returns_a_changed_copy() -> None:
    assert slow().timeout == 60
    pending = add(1).with_timeout(0.5)
    assert pending.timeout == 0.5
    assert pending.with_timeout(None).timeout is None
    assert slow().with_timeout(5).timeout == 5
    assert slow().timeout == 60, "a value: others are not changed"


@pytest.mark.parametrize("seconds", [0, -1, -0.5, float("nan"), "10"])
def test_invalid_timeout_is_rejected(seconds: Any) -> None:
    with pytest.raises(ValueError, match="timeout must be more than 0 seconds"):
        sky.function(timeout=seconds)(add.fn)
    with pytest.raises(ValueError, match="timeout must be more than 0 seconds"):
        add(1).with_timeout(seconds)


UNCALLED = [
    (lambda f: f >> POOL, "f(...) >> pool"),
    (lambda f: f @ POOL, "f(...) @ pool"),
    (lambda f: f > POOL, "f(...) > pool"),
    (lambda f: f & add(1), "f(...) & add(...)"),
    (lambda f: add(1) & f, "... & f(...)"),
    (lambda f: sky.gather(add(1), f), "sky.gather(f(...), ...)"),
]


@pytest.mark.parametrize(("operate", "write"), UNCALLED, ids=[write for _, write in UNCALLED])
def test_operator_on_uncalled_function_explains_the_call(operate: Any, write: str) -> None:
    def f() -> None: ...

    with pytest.raises(TypeError) as raised:
        operate(sky.function(f))
    assert str(raised.value) == f"f is a function, not a call. Call the function: {write}"


def test_function_decorated_twice_is_one_function() -> None:
    twice: Any = sky.function(slow)
    assert twice().local() == "slow" and twice().timeout == 60 and repr(twice) == "<sky.function slow>"
    assert sky.function(timeout=5)(slow)().timeout == 5  # type: ignore[arg-type]


def test_using_the_value_of_an_undispatched_call_is_an_error() -> None:
    call: Any = add(1)
    message = (
        r"^add\(\.\.\.\) has not run and has no value yet. Send it to a pool, value = add\(\.\.\.\) >> pool, "
        r"or run it in this process, add\.local"
    )
    with pytest.raises(TypeError, match=message):
        call["loss"]
    with pytest.raises(TypeError, match=message):
        for _ in call:
            pass
    with pytest.raises(AttributeError, match=message):
        call.result()
    for use in (lambda: call + 1, lambda: 2 * call, lambda: call / 2, lambda: float(call), lambda: sum([call])):
        with pytest.raises(TypeError, match=message):
            use()
    assert not hasattr(call, "_repr_html_") and copy.copy(call).args == (1,)


def test_gather_of_a_list_suggests_unpacking() -> None:
    with pytest.raises(TypeError, match=r"number 0 is list. Unpack it: sky.gather\(\*calls\)"):
        sky.gather([add(1), add(2)])  # type: ignore[call-overload]


def test_group_of_something_other_than_calls_is_an_error() -> None:
    with pytest.raises(TypeError, match="add is a function, not a call"):
        sky.gather(add(1), add)  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        add(1) & 5  # type: ignore[operator]
    with pytest.raises(TypeError, match="a group does not support @"):
        (add(1) & add(2)) @ POOL
    with pytest.raises(TypeError, match="decorates functions, got int"):
        sky.function(5)  # type: ignore[call-overload]


class Trainer:
    """Class with methods that run on a pool."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    @sky.function(timeout=5)
    def train(self, epochs: int = 1) -> float:
        """Train."""
        return self.rate * epochs

    @staticmethod
    @sky.function
    def plain(x: int) -> int:
        return x

    smallest = sky.function(min)


def test_method_call_keeps_its_object() -> None:
    pending = Trainer(2.0).train(3)
    assert (pending.name, pending.timeout, pending.local()) == ("train", 5, 6.0)
    assert pickle.loads(cloudpickle.dumps(pending)).local() == 6.0, "and takes it along"
    assert Trainer.train(Trainer(1.0), 3).local() == 3.0
    assert Trainer(2.0).plain(4).local() == 4 and Trainer(2.0).smallest(4, 3).local() == 3  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"train\(epochs: 'int' = 1\).* cannot be called with these arguments"):
        check_call(Trainer(2.0).train(1, 2), Trainer(2.0).train.fn)  # type: ignore[call-arg]


def test_surplus_argument_is_rejected_at_the_call() -> None:
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
    not_typed: Any = fit, Model()  # a checker would refuse these, too
    fit_, model = not_typed
    wrong: list[tuple[Any, str]] = [
        (lambda: fit_(1, 2, 3), "fit.* cannot be called with these arguments: too many positional arguments"),
        (lambda: fit_(1, 2, b=3), "multiple values for argument 'b'"),
        (lambda: fit_(a=1), "positional.only"),
        (lambda: model.score(1, 2), r"score\(x: 'int'\).* cannot be called with these arguments: too many"),
    ]
    for call, why in wrong:
        with pytest.raises(TypeError, match=why):
            call()


def test_missing_argument_may_be_supplied_by_a_decorator() -> None:
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


# How many items of a map travel together.


def chunk_size(seconds: float, size: int = 8, *, left: int | None = None, single: bool = False) -> int:
    """Return the chunk size for calls whose items have a given duration and size."""
    sizes = ChunkSizer(4, single=single, remaining=left)
    for _ in range(12):
        items = sizes.next_size()
        sizes.record_sent(items, size * items)
        sizes.record_duration(items, seconds * items)
    return sizes.next_size()


@pytest.mark.parametrize(
    ("seconds", "size", "expected"),
    [(0, 8, 256), (1e-6, 8, 256), (0.01, 8, 5), (0.2, 8, 1), (0, 16 << 10, 2), (0, 1 << 20, 1)],
)
def test_map_chunk_size_depends_on_duration_and_size(seconds: float, size: int, expected: int) -> None:
    assert chunk_size(seconds, size) == pytest.approx(expected, abs=1)


def test_last_map_chunks_are_small_and_timed_calls_are_single() -> None:
    assert chunk_size(0, left=20) == 1
    assert chunk_size(0, single=True) == 1
    sizes = ChunkSizer(4, single=False, remaining=None)
    assert sizes.next_size() == 1
    sizes.record_duration(1, 0)
    assert [sizes.next_size() for _ in range(3)] == [4, 16, 64]


class Answering:
    """Ranks that answer all calls at once except the first."""

    places = 1

    def __init__(self) -> None:
        self.arrivals: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.given: list[Sequence[Any]] = []
        self.closed = False

    def start(self) -> None: ...

    def submit_chunk(self, first: int, items: Sequence[Any]) -> int:
        self.given.append(items)
        if len(self.given) > 1:
            self.answer(len(self.given) - 1)
        return 8

    def answer(self, number: int) -> None:
        items = self.given[number]
        self.arrivals.put(("values", number, lambda: list(items), len(items), 1.0, 8))

    def finish(self) -> None: ...

    def failure(self) -> Exception | None:
        return None

    def close(self) -> None:
        self.closed = True


def test_calls_waiting_for_a_slow_first_map_call_are_bounded() -> None:
    ranks: Any = Answering()
    got = queue.SimpleQueue[int]()
    values = MapOperation(ranks, PendingFunction(abs), itertools.count(), ordered=True, single=False).values()

    def read() -> None:
        for value in itertools.islice(values, 20):
            got.put(value)

    threading.Thread(target=read, daemon=True).start()
    wait_until(lambda: len(ranks.given) >= MAX_WAITING_CALLS, what="all that may wait")
    assert got.empty() and len(ranks.given) == MAX_WAITING_CALLS
    ranks.answer(0)
    assert [got.get(timeout=30) for _ in range(20)] == list(range(20))


# A function's pickle is made once, as long as the same would be made of it again.

SCRIPT = """
import json
import math

scale = 2
unused = []

def work(x, y=3):
    "What it does."
    inner = lambda z: z * scale
    return math.floor(x) + inner(y)

def plain(x, y=3):
    inner = lambda z: z * scale
    return x + inner(y)

def made(factor):
    def inside(x):
        return x * factor
    return inside
"""


@pytest.fixture
def script() -> dict[str, Any]:
    """Globals of a script that has run."""
    space: dict[str, Any] = {"__name__": "__main__", "__file__": "/script.py"}
    exec(SCRIPT, space)
    return space


class Pickles:
    """Counter of real pickling operations."""

    def __init__(self, keeps: Callable[[bytes], bool] = lambda made: True) -> None:
        self.made = 0
        self._functions = PickleCache[bytes](keeps)

    def of(self, fn: Callable[..., Any]) -> bytes:
        def make() -> bytes:
            self.made += 1
            return cloudpickle.dumps(fn, protocol=5)

        return self._functions.get(fn, make)


def test_pickled_function_using_modules_is_cached(script: dict[str, Any]) -> None:
    pickles = Pickles()
    made = [pickles.of(script["work"]) for _ in range(100)]  # pickling, or another thread, may load one at first
    assert made[-1] is made[-2]
    assert pickle.loads(made[-1])(2.5) == 2 + 3 * 2


@pytest.fixture
def pickles() -> Pickles:
    return Pickles()


def test_cached_pickle_survives_changes_to_unused_globals(script: dict[str, Any], pickles: Pickles) -> None:
    first = pickles.of(script["plain"])
    script["unused"].append(1)
    script["more"] = 1
    assert pickles.of(script["plain"]) is first
    assert pickles.made == 1
    assert pickle.loads(first)(2) == 2 + 3 * 2


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "used global number": lambda s: s.update(scale=7),
    "removed global": lambda s: s.pop("scale"),
    "global replaced by a list": lambda s: s.update(scale=[1]),
    "replaced module": lambda s: s.update(math=json),
    "code": lambda s: setattr(s["work"], "__code__", (lambda x, y=3: "other").__code__),
    "defaults": lambda s: setattr(s["work"], "__defaults__", (4,)),
    "docstring": lambda s: setattr(s["work"], "__doc__", "Other."),
    "name": lambda s: setattr(s["work"], "__name__", "other"),
    "attribute": lambda s: setattr(s["work"], "note", 1),
    "annotations": lambda s: s["work"].__annotations__.update(x=int),
    "script path": lambda s: s.update(__file__="/other.py"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_changed_function_is_pickled_again(
    script: dict[str, Any], change: Callable[[dict[str, Any]], object], pickles: Pickles
) -> None:
    before = pickles.of(script["work"])
    change(script)
    after = pickles.of(script["work"])
    assert pickles.made == 2
    assert after == cloudpickle.dumps(script["work"], protocol=5)
    assert after != before  # else the change was none


def test_changed_closure_value_is_pickled_again(script: dict[str, Any], pickles: Pickles) -> None:
    double, halves = script["made"](2), script["made"]([0.5])
    pickles.of(double)
    pickles.of(double)
    assert pickles.made == 1
    double.__closure__[0].cell_contents = 3
    assert pickle.loads(pickles.of(double))(2) == 6
    pickles.of(halves)
    halves.__closure__[0].cell_contents[0] = 4
    assert pickle.loads(pickles.of(halves))(1) == [4]


@pytest.mark.parametrize(
    "value", [[1], {"a": 1}, {1}, lambda: 1, int, types.SimpleNamespace(a=1), types.ModuleType("made_up")]
)
def test_function_using_a_mutable_global_is_pickled_each_time(
    script: dict[str, Any], value: object, pickles: Pickles
) -> None:
    script["scale"] = value
    pickles.of(script["work"])
    pickles.of(script["work"])
    assert pickles.made == 2


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    (tmp_path / "package_of_two").mkdir()
    (tmp_path / "package_of_two" / "__init__.py").write_text("")
    (tmp_path / "package_of_two" / "part.py").write_text("value = 1")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("package_of_two")
    for name in [name for name in sys.modules if name.startswith("package_of_two")]:
        del sys.modules[name]


def test_function_is_pickled_again_after_a_submodule_was_loaded(
    script: dict[str, Any], package: types.ModuleType, pickles: Pickles
) -> None:
    exec("def reaches():\n    return package.part.value", script)
    script["package"] = package
    pickles.of(script["reaches"])
    importlib.import_module("package_of_two.part")
    after = pickles.of(script["reaches"])
    assert b"package_of_two.part" in after
    assert after == cloudpickle.dumps(script["reaches"], protocol=5)


def test_large_pickled_function_is_not_cached(script: dict[str, Any]) -> None:
    pickles = Pickles(keeps=lambda made: False)
    pickles.of(script["work"])
    pickles.of(script["work"])
    assert pickles.made == 2
