"""User code and values that raise in any hook: the run fails with its cause, and the pool works."""

from __future__ import annotations

import os
import pickle
import re
import signal
import sys
import threading
import time
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.model.errors import RemoteTraceback
from skyward_core.plugins import Plugin
from skyward_core.store.pool_folder import PoolFolder
from tests.support.pool_logs import last_run

KINDS = (
    SystemExit, KeyboardInterrupt, GeneratorExit, CancelledError, RecursionError, MemoryError, StopIteration,
    ValueError,
)  # fmt: skip
_PROOF = pytest.mark.proof("0.1 s of a processor")


def for_each_exception_kind(by_default: int) -> pytest.MarkDecorator:
    """Run a test with each kind of exception, with the first of them by default."""
    params = [
        pytest.param(kind, id=kind.__name__, marks=[_PROOF] if place >= by_default else [])
        for place, kind in enumerate(KINDS)
    ]
    return pytest.mark.parametrize("kind", params)


ENDS = 0  # the argument of each; as an exit status it says that all is well


@pytest.fixture(scope="module")
def pool(module_home: Path) -> Iterator[sky.Compute]:
    worker = sky.Worker(ranks_per_node=2)
    with sky.Compute(provider=sky.Local(), worker=worker, options=sky.Options(console=False, grace=1.0)) as compute:
        yield compute


class Odd:
    """Value that raises when it is pickled or loaded, on the client or on a rank.

    Args:
        where: "pickled", "loaded here" or "loaded there".
    """

    def __init__(self, kind: Callable[[int], BaseException], where: str) -> None:
        self.kind, self.where, self.client = kind, where, os.getpid()

    def __reduce__(self) -> Any:
        if self.where == "pickled":
            raise self.kind(ENDS)
        return loaded, (self.kind, self.where, self.client)


def loaded(kind: Callable[[int], BaseException], where: str, client: int) -> Odd:
    if where == ("loaded here" if os.getpid() == client else "loaded there"):
        raise kind(ENDS)
    odd = Odd(kind, where)
    odd.client = client
    return odd


@sky.function
def give(value: Any) -> Any:
    return value


@sky.function
def give_on_one(value: Any) -> Any:
    return value if sky.instance_info().rank == 1 else "fine"


@sky.function
def yields(value: Any) -> Iterator[Any]:
    yield "fine"
    yield give_on_one.local(value)
    yield "more"


def generated(value: Any) -> Iterator[Any]:
    yield "fine"
    yield value


# Where a value comes back to the client; what other ranks had given by then.
BACK: dict[str, tuple[Callable[[sky.Compute, Any], Any], Any]] = {
    "broadcast": (lambda pool, odd: give_on_one(odd) @ pool, {0: "fine"}),
    "single": (lambda pool, odd: give(odd) >> pool, {}),
    "future": (lambda pool, odd: (give(odd) > pool).result(), {}),
    "gather": (lambda pool, odd: sky.gather(give(1), give(odd), give(3)) >> pool, {0: 1, 2: 3}),
    "streamed gather": (lambda pool, odd: list(sky.gather(give(1), give(odd), stream=True) >> pool), None),
    "large broadcast": (lambda pool, odd: give_on_one([bytes(100_000), odd]) @ pool, {0: "fine"}),
    "large yield": (lambda pool, odd: list(sky.function(generated)([bytes(100_000), odd]) >> pool), {}),
    "yield": (lambda pool, odd: list(sky.function(generated)(odd) >> pool), {}),
    "yields of all": (lambda pool, odd: [*zip(*(yields(odd) @ pool), strict=False)], None),
    "map": (lambda pool, odd: list(pool.map(give, [1, odd])), {0: 1}),
    "executor": (lambda pool, odd: submitted(pool, odd), {}),
}  # fmt: skip


def raised_by(work: Callable[[], Any]) -> BaseException | None:
    """Return the exception of a call, because some of them would end pytest."""
    try:
        work()
    except BaseException as error:  # noqa: BLE001
        return error
    return None


def endless(value: Any) -> Iterator[Any]:
    while True:
        yield give_on_one.local(value)


def test_yielded_value_that_cannot_be_loaded_ends_the_run(pool: sky.Compute) -> None:
    first, second = sky.function(endless)(Odd(SystemExit, "loaded here")) @ pool
    assert next(first) == "fine"
    assert isinstance(raised_by(lambda: next(second)), sky.RunError)
    assert give("next") @ pool == ["next"] * 2
    assert isinstance(raised_by(lambda: list(first)), sky.Cancelled)


def ctrl_c(_: int) -> BaseException:
    """Press ctrl-c during a long operation."""
    threading.Timer(0, os.kill, (os.getpid(), signal.SIGINT)).start()
    time.sleep(60)
    return AssertionError("no handler has raised anything")


def submitted(pool: sky.Compute, odd: Any) -> Any:
    with sky.Executor(pool) as executor:
        fine, bad = executor.submit(pow, 2, 3), executor.submit(give, odd)
        assert fine.result() == 8
        return bad.result()


@for_each_exception_kind(2)
@pytest.mark.parametrize("place", BACK)
def test_result_that_cannot_be_loaded_is_a_run_error(pool: sky.Compute, place: str, kind: Any) -> None:
    call, results = BACK[place]
    error = raised_by(lambda: call(pool, Odd(kind, "loaded here")))
    assert isinstance(error, sky.RunError), repr(error)
    assert re.search(rf"cannot be loaded here: [a-z.]*{kind.__name__}: {ENDS}", str(error))
    assert type(error.__cause__) is kind and error.run and error.function
    assert error.root_cause.type.endswith(kind.__name__) and error.root_cause.rank in (0, 1)
    assert results is None or error.results == results
    assert give("next") @ pool == ["next"] * 2


@pytest.mark.proof("0.5 s of a processor", after=1)
@pytest.mark.parametrize("place", [place for place in BACK if place != "executor"])
def test_ctrl_c_while_a_result_is_loaded_is_raised(pool: sky.Compute, place: str) -> None:
    error = raised_by(lambda: BACK[place][0](pool, Odd(ctrl_c, "loaded here")))
    assert type(error) is KeyboardInterrupt and error.args == (), repr(error)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert give("next") @ pool == ["next"] * 2


@pytest.mark.proof("0.2 s of a processor", after=1)
@pytest.mark.parametrize("place", ["single", "closure", "map", "sweep"])
def test_ctrl_c_while_an_argument_is_pickled_is_raised(pool: sky.Compute, place: str) -> None:
    error = raised_by(lambda: SENT[place](pool, Odd(ctrl_c, "pickled")))
    assert type(error) is KeyboardInterrupt and error.args == (), repr(error)
    assert give("next") @ pool == ["next"] * 2


def test_exit_by_a_signal_handler_while_loading_a_result_is_raised(pool: sky.Compute) -> None:
    def leave(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGINT, leave)
    try:
        error = raised_by(lambda: give(Odd(ctrl_c, "loaded here")) >> pool)
        assert type(error) is SystemExit and error.code == 130
        assert signal.getsignal(signal.SIGINT) is leave
    finally:
        signal.signal(signal.SIGINT, before)


def test_exception_that_cannot_be_loaded_becomes_a_remote_error(pool: sky.Compute) -> None:
    error = raised_by(lambda: raises(OnRanksOnly("told")) @ pool)
    assert isinstance(error, sky.RunError) and "OnRanksOnly: told" in str(error), repr(error)
    assert isinstance(error.__cause__, sky.RemoteError) and error.__cause__.type_name.endswith("OnRanksOnly")
    assert isinstance(error.__cause__.__cause__, RemoteTraceback)
    with sky.Executor(pool) as executor:
        found = executor.submit(raises.local, OnRanksOnly("told")).exception()
    assert isinstance(found, sky.RemoteError) and "OnRanksOnly: told" in str(found)


class OnRanksOnly(Exception):
    def __init__(self, words: str, client: int | None = None) -> None:
        super().__init__(words)
        self.client = client or os.getpid()

    def __reduce__(self) -> Any:
        return on_ranks_only, (*self.args, self.client)


def on_ranks_only(words: str, client: int) -> OnRanksOnly:
    if client == os.getpid():
        raise SystemExit(ENDS)
    return OnRanksOnly(words, client)


def test_saved_result_that_cannot_be_loaded_is_a_run_error(home: Path) -> None:
    options = sky.Options(console=False, grace=1.0)
    with sky.Compute(provider=sky.Local(), worker=sky.Worker(ranks_per_node=2), options=options) as compute:
        assert give("x") @ compute == ["x"] * 2
        run, key = last_run(compute), compute.pool.row.key
    with closing(PoolFolder(key)) as archive:
        for index, value in enumerate(("fine", Odd(SystemExit, "loaded here"))):
            (archive.results / f"{run}.{index}.pickle").write_bytes(pickle.dumps(value))
    error = raised_by(lambda: sky.results(run))
    assert isinstance(error, sky.RunError) and (error.run, error.results) == (run, {0: "fine"}), repr(error)
    assert re.search(r"rank 1 \(node 0\) returned, but its result cannot be loaded here: SystemExit: 0", str(error))


def test_trial_whose_result_cannot_be_loaded_has_an_error(pool: sky.Compute) -> None:
    trials = sky.sweep(give, value=[1, Odd(SystemExit, "loaded here"), Shy()]) >> pool
    assert isinstance(trials[1].error, sky.RunError) and trials[0].value == 1
    assert [trial.ok for trial in trials] == [True, False, True]
    assert "cannot be loaded here" in str(trials) and str(trials).count("its __repr__ raised SystemExit") == 2


class Shy:
    def __repr__(self) -> str:
        raise SystemExit(ENDS)


class OddPlugin(Plugin):
    name = "odd"

    def __init__(self, odd: Odd) -> None:
        self.odd = odd


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("pickled", "Cannot send the plugins to the nodes: SystemExit: 0"),
        ("loaded there", "entering its plugins failed: SystemExit: 0"),
    ],
)
def test_plugin_that_exits_while_pickled_or_loaded_is_an_error(home: Path, where: str, expected: str) -> None:
    def use() -> None:
        plugins = [OddPlugin(Odd(SystemExit, where))]
        options = sky.Options(console=False, grace=1.0)
        with sky.Compute(provider=sky.Local(), nodes=1, plugins=plugins, options=options) as compute:
            give(1) @ compute

    error = raised_by(use)
    assert isinstance(error, sky.SkywardError) and expected in str(error), repr(error)


# Where a value is sent to ranks, and which error that gives if it cannot be pickled.
SENT: dict[str, Callable[[sky.Compute, Any], Any]] = {
    "broadcast": lambda pool, odd: give(odd) @ pool,
    "single": lambda pool, odd: give([odd]) >> pool,
    "gather": lambda pool, odd: sky.gather(give(1), give({"a": odd})) >> pool,
    "closure": lambda pool, odd: sky.function(lambda: odd)() @ pool,
    "map": lambda pool, odd: list(pool.map(give, [1, odd])),
    "executor": submitted,
    "fed": lambda pool, odd: sky.function(consume)(generated(odd)) @ pool,
    "sweep": lambda pool, odd: sky.sweep(give, value=[1, odd]) >> pool,
}


def consume(values: Iterator[Any]) -> list[Any]:
    return list(values)


@for_each_exception_kind(1)
@pytest.mark.parametrize("place", SENT)
def test_argument_that_cannot_be_pickled_is_named(pool: sky.Compute, place: str, kind: Any) -> None:
    error = raised_by(lambda: SENT[place](pool, Odd(kind, "pickled")))
    expected = sky.RunError if place == "fed" else sky.NotPicklableError
    assert isinstance(error, expected), repr(error)
    assert place == "fed" or "cannot be pickled" in str(error)
    assert "Odd object" in str(error) or place == "fed"
    assert give("next") @ pool == ["next"] * 2


@for_each_exception_kind(1)
@pytest.mark.parametrize("place", SENT)
def test_argument_that_cannot_be_loaded_on_a_rank_is_a_run_error(pool: sky.Compute, place: str, kind: Any) -> None:
    work = lambda: SENT[place](pool, Odd(kind, "loaded there"))  # noqa: E731
    error = work()[1].error if place == "sweep" else raised_by(work)
    if place == "executor":
        assert isinstance(error, BrokenExecutor), repr(error)
        error = error.__cause__
    assert isinstance(error, BaseException if place == "sweep" else sky.RunError), repr(error)
    cause = error if place == "sweep" else error.__cause__
    if issubclass(kind, Exception) and kind is not StopIteration:
        assert type(cause) is kind
    else:
        assert isinstance(cause, sky.NotPicklableError), repr(cause)
        assert re.search(rf"cannot be loaded on this node: {kind.__name__}: {ENDS}", str(cause))
    assert give("next") @ pool == ["next"] * 2


CALLED = ["__str__", "__repr__", "__reduce__", "__eq__", "__hash__", "__bool__", "__len__", "__array__", "__format__"]
HOOKS = [
    *CALLED, "__iter__", "__getattr__", "__notes__", "__cause__", "__context__", "__suppress_context__",
    "__traceback__", "__dict__", "__class__", "__skyward_words__", "args", "code", "dtype", "name", "shape",
]  # fmt: skip
OF_TYPES = ("__name__", "__module__", "__instancecheck__", "__call__", "__mro__")


def odd_class(base: type, hook: str, kind: Any, **names: Any) -> Any:
    """Return a class whose attribute or method of a given name raises, or whose metaclass has such an attribute."""

    def hooked(*_: Any, **__: Any) -> Any:
        raise kind(ENDS)

    def refuse(self: Any, name: str) -> Any:
        raise kind(ENDS) if name == hook or name[:2] != "__" else AttributeError(name)

    if hook in OF_TYPES:
        meta = type(
            "Meta", (type(base),), {hook: hooked if hook in ("__call__", "__instancecheck__") else property(hooked)}
        )
        return meta("Odd", (base,), names)
    if hook == "__getattr__":
        return type("Odd", (base,), names | {hook: refuse})
    return type("Odd", (base,), names | {hook: hooked if hook in CALLED else property(hooked)})


@sky.function
def raise_odd(hook: str, kind: Any, how: str) -> None:
    made = odd_class(LookupError, hook, kind)
    error = type.__call__(made, "told")
    if how == "cause":
        raise ValueError("outside") from error
    if how == "group":
        raise ExceptionGroup("outside", [error])
    if how == "attribute":
        outer = ValueError("outside")
        outer.inner = error  # type: ignore[attr-defined]
        raise outer
    raise error


@sky.function
def return_odd(hook: str, kind: Any, how: str) -> Any:
    names: dict[str, Any] = {"__module__": "numpy"}
    if hook != "__reduce__":
        names["__reduce__"] = lambda self: (int, ())
    made = odd_class(object, hook, kind, **names)
    odd = type.__call__(made)
    return {"plain": odd, "cause": {"a": odd}, "group": [odd] * 9, "attribute": {"b": (odd, 1), "c": 1}}[how]


HOWS = ("plain", "cause", "group", "attribute")


@for_each_exception_kind(1)
@pytest.mark.parametrize("how", [*HOWS, "map"])
def test_exceptions_with_broken_hooks_are_reported(pool: sky.Compute, how: str, kind: Any) -> None:
    for hook in (*HOOKS, *OF_TYPES, "add_note"):

        def call(hook: str = hook) -> Any:
            if how == "map":
                return list(pool.map(lambda _: raise_odd.local(hook, kind, "plain"), [1]))
            return raise_odd(hook, kind, how) >> pool

        error = raised_by(call)
        assert isinstance(error, sky.RunError), (hook, repr(error))
        cause = error.root_cause
        assert cause.outcome == "raised", (hook, cause)
        expected = {"plain": "Odd", "map": "Odd", "group": "ExceptionGroup"}.get(how, "ValueError")
        assert cause.type.endswith(expected) or "Odd" in cause.type, (hook, cause)
        assert ("told" if expected == "Odd" else "outside") in cause.message or hook == "__str__", (hook, cause)
    assert give("next") @ pool == ["next"] * 2


@for_each_exception_kind(1)
@pytest.mark.parametrize("how", HOWS)
def test_results_with_broken_hooks_are_returned_or_reported(pool: sky.Compute, how: str, kind: Any) -> None:
    for hook in (*HOOKS, *OF_TYPES):
        error = raised_by(lambda: return_odd(hook, kind, how) >> pool)  # noqa: B023
        if hook in ("__reduce__", "__class__"):
            assert isinstance(error, sky.RunError), (hook, repr(error))
            assert "cannot be sent back: Odd object" in str(error), (hook, error)
        else:
            assert error is None, (hook, repr(error))
    assert give("next") @ pool == ["next"] * 2


class Text(str):
    """String whose conversion to text fails."""

    def __str__(self) -> str:
        return self

    def __getitem__(self, _: Any) -> str:
        raise SystemExit(ENDS)

    __format__ = __add__ = __repr__ = __getitem__  # type: ignore[assignment]


class Number(int):
    def __and__(self, _: Any) -> int:
        raise SystemExit(ENDS)

    __bool__ = __eq__ = __repr__ = __format__ = __and__  # type: ignore[assignment]
    __hash__ = int.__hash__


class Own(SystemExit):
    code = property(lambda self: 1 / 0)  # type: ignore[assignment]


class NoText(Exception):
    def __str__(self) -> Any:
        return 5


class TextOfItsOwn(Exception):
    def __str__(self) -> str:
        return Text("told")


class Falsy(LookupError):
    def __len__(self) -> int:
        return 0


class Named(ModuleNotFoundError):
    name = 5  # type: ignore[assignment]


@sky.function
def leaves(code: Any) -> None:
    sys.exit(odd_class(object, code, SystemExit)() if code.__class__ is str and code[:2] == "__" else code)


@sky.function
def raises(error: BaseException) -> None:
    raise error


def long_chain() -> None:
    try:
        error = None
        for number in range(3000):
            made = ValueError(number)
            made.__cause__, error = error, made
        raise made
    finally:
        del made, error


@pytest.mark.parametrize(
    ("call", "kind", "expected"),
    [
        (lambda: leaves("__repr__"), "exited", "its __repr__ raised SystemExit"),
        (lambda: leaves("__str__"), "exited", "called sys.exit"),
        (lambda: leaves(Number(7)), "exited", "status 7|called sys.exit"),
        (lambda: leaves(Text("7")), "exited", "called sys.exit"),
        (lambda: raises(Own(7)), "exited", r"called sys.exit\(7\)"),
        (lambda: raises(NoText()), "raised", "its __str__ raised TypeError"),
        (lambda: raises(TextOfItsOwn()), "raised", "told"),
        (lambda: raises(Falsy("expected")), "raised", "expected"),
        (lambda: raises(Named("expected")), "raised", "expected"),
        (lambda: sky.function(long_chain)(), "raised", "2999"),
    ],
)
def test_exits_with_unusual_status_values_are_reported(pool: sky.Compute, call: Any, kind: str, expected: str) -> None:
    error = raised_by(lambda: call() >> pool)
    assert isinstance(error, sky.RunError), repr(error)
    assert error.root_cause.outcome == kind and re.search(expected, str(error)), error.root_cause
    assert isinstance(error, Falsy) == ("Falsy" in error.root_cause.type)
    assert give("next") @ pool == ["next"] * 2


@pytest.fixture(scope="module")
def one_rank_pool(module_home: Path) -> Iterator[sky.Compute]:
    with sky.Compute(provider=sky.Local(), nodes=1, options=sky.Options(console=False, grace=1.0)) as compute:
        yield compute


def without_standard_streams() -> int:
    sys.stdout = sys.stderr = None  # type: ignore[assignment]
    return 7


def without_open() -> bytes:
    import builtins

    builtins.open = None  # type: ignore[assignment]
    return bytes(200_000)


def without_clock() -> int:
    for name in ("time", "monotonic", "perf_counter", "sleep"):
        setattr(time, name, None)
    print("without a clock")
    return 8


def closes_all() -> int:
    os.closerange(3, 4096)
    print("on its own")
    return 9


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (without_standard_streams, 7),
        (without_open, bytes(200_000)),
        (without_clock, 8),
        (closes_all, 9),
    ],
)
def test_user_code_that_breaks_builtins_is_reported(
    one_rank_pool: sky.Compute, fn: Callable[[], Any], expected: Any
) -> None:
    assert sky.function(timeout=30)(fn)() @ one_rank_pool == [expected]
    # The same worker where it lives on, else another one; what it is given now comes to it by a file.
    assert sky.function(len)(bytes(200_000)) @ one_rank_pool == [200_000]
    with pytest.raises(sky.RunError, match="status 3"):
        sky.function(lambda: os._exit(3))() @ one_rank_pool
    assert sky.function(lambda: 1)() @ one_rank_pool == [1]
