"""A run's error is of its cause's type, too, and in all else a run's error."""

from __future__ import annotations

import abc
import builtins
import copy
import dataclasses
import enum
import errno
import json
import pickle
import traceback
from typing import Any, Generic, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward_core.model import errors
from skyward_core.model.errors import RunError, error_exit_code
from skyward_core.model.outcomes import Outcome, RootCause
from skyward_core.pool.runs.run_results import error_of_cause_type

SAID = "train failed: rank 0 (node 0) raised E: no"
NEVER = (StopIteration, StopAsyncIteration, BaseExceptionGroup, errors.PoolError, errors.Cancelled)


def run_error(text: str = SAID) -> RunError:
    outcome = Outcome(0, 0, 0, "raised", 0.0)
    cause = RootCause(0, "raised", "E", "no")
    return RunError(text, run="r", function="train", outcomes={0: outcome}, root_cause=cause, results={1: "one"})


def check(cause: BaseException, *kinds: type[BaseException]) -> RunError:
    """An error of these kinds, and in all else as any other run's."""
    plain, error = run_error(), error_of_cause_type(run_error(), cause)
    assert error.__cause__ is cause
    assert not kinds or isinstance(error, kinds)
    for each in (error, pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert isinstance(each, RunError)
        assert (str(each), repr(each), each.args, each.what) == (SAID, repr(plain), plain.args, plain.what)
        assert (each.run, each.function, each.results) == ("r", "train", {1: "one"})
        assert (each.outcomes, each.root_cause) == (plain.outcomes, plain.root_cause)
        assert (each.hint, each.field, error_exit_code(each)) == (None, "", 1)
        assert each == each and hash(each) is not None and each != plain
    for kind in kinds:
        assert isinstance(copy.copy(error), kind)
    try:
        raise error
    except RunError as caught:
        assert (
            traceback.format_exception_only(type(caught), caught)[-1] == f"skyward_core.model.errors.RunError: {SAID}\n"
        )
        assert "".join(traceback.format_exception(caught)).count("direct cause") >= 1
    return error


def made(kind: type[BaseException]) -> BaseException | None:
    for args in ((), ("no",), ("utf-8", b"\xff", 0, 1, "no"), ("a", 0, 1, "no"), ("no", [ValueError()])):
        try:
            return kind(*args)
        except TypeError:
            continue
    return None


BUILT_IN = [each for each in vars(builtins).values() if isinstance(each, type) and issubclass(each, BaseException)]
OURS = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.SkywardError)]


@pytest.mark.parametrize("kind", [*dict.fromkeys(BUILT_IN), *OURS], ids=lambda kind: kind.__name__)
def test_of_every_type_that_there_is(kind: type[BaseException]) -> None:
    cause = made(kind)
    if cause is None:
        cause = kind.__new__(kind, "no")
    if issubclass(kind, NEVER) or not issubclass(kind, Exception) or issubclass(RunError, kind):
        assert not isinstance(check(cause), NEVER)
        return
    error = check(cause, kind)
    assert isinstance(pickle.loads(pickle.dumps(error)), kind)


def test_what_more_a_cause_says_is_said() -> None:
    error = check(FileNotFoundError(errno.ENOENT, "gone", "a.pt"), OSError)
    for each in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert isinstance(each, OSError)
        assert (each.errno, each.strerror, each.filename) == (errno.ENOENT, "gone", "a.pt")
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("[1,")
    wrong = check(caught.value, json.JSONDecodeError, ValueError)
    assert getattr(wrong, "pos", None) == 3
    cause = ImportError("no", name="torch")
    assert getattr(check(cause, ImportError), "name", None) == "torch"
    misspelt = AttributeError("no", name="argz", obj=run_error())
    assert getattr(check(misspelt, AttributeError), "name", "") is None


def test_whatever_a_rank_raised_is_a_runtime_error_as_older_scripts_have_it() -> None:
    assert isinstance(run_error(), RuntimeError)
    cause = RuntimeError("no")
    cause.step = 3  # type: ignore[attr-defined]
    for kind in (check(ValueError("no"), ValueError, RuntimeError), check(cause, RuntimeError)):
        with pytest.raises(RuntimeError, match="train failed"):
            raise kind
    assert getattr(check(cause), "step", 0) == 3


class Meta(type):
    pass


class Field(ValueError):
    """As scripts have them: with arguments of its own."""

    def __init__(self, name: str, value: int) -> None:
        super().__init__(f"{name} cannot be {value}")
        self.name, self.value = name, value

    def __str__(self) -> str:
        return f"{self.name}={self.value}"

    def __reduce__(self) -> Any:
        raise RuntimeError("nobody asks")


class New(LookupError):
    def __new__(cls, *args: object) -> New:
        assert args
        return super().__new__(cls, *args)


@dataclasses.dataclass(frozen=True)
class Frozen(KeyError):
    key: str


@dataclasses.dataclass
class Unhashable(Exception):
    key: str


class Slotted(OSError):
    __slots__ = ("place",)


class Odd(ArithmeticError):
    @property
    def args(self) -> Any:  # type: ignore[override]
        raise RuntimeError

    def __repr__(self) -> str:
        raise RuntimeError

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    def with_traceback(self, tb: object) -> Any:
        raise RuntimeError


class Both(ValueError, OSError):
    pass


class Ours(errors.SkywardError, KeyError):
    pass


T = TypeVar("T")


class WithMeta(KeyError, metaclass=Meta):
    pass


class Abstract(TypeError, abc.ABC):
    pass


class Typed(IndexError, Generic[T]):
    pass


class Registered(ConnectionError):
    def __init_subclass__(cls) -> None:
        raise RuntimeError("made a class of it")


class Property(RuntimeError):
    @property
    def results(self) -> int:
        return 3


class Group(ExceptionGroup[ValueError], ValueError):
    pass


class Ended(StopIteration, ValueError):
    pass


class Gone(KeyboardInterrupt):
    pass


class Down(errors.PoolGone, ValueError):
    pass


class Codes(enum.IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    ("cause", "kinds", "not_this"),
    [
        (Field("lr", 3), (Field, ValueError), None),
        (New("x"), (New, LookupError), None),
        (Frozen("x"), (Frozen, KeyError), None),
        (Unhashable("x"), (Unhashable,), None),
        (Slotted(2, "x"), (Slotted, OSError), None),
        (Odd("x"), (Odd, ArithmeticError), None),
        (Both("x"), (Both, ValueError, OSError), None),
        (Ours("x"), (Ours, KeyError), None),
        (WithMeta("x"), (KeyError,), WithMeta),
        (Abstract("x"), (TypeError,), Abstract),
        (Typed[int]("x"), (IndexError,), Typed),
        (Registered("x"), (ConnectionError,), Registered),
        (Property("x"), (RuntimeError,), Property),
        (Group("x", [ValueError()]), (ValueError,), Group),
        (Ended("x"), (ValueError,), StopIteration),
        (Gone("x"), (), BaseException),
        (Down("x"), (ValueError,), errors.PoolError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_of_types_that_scripts_make(
    cause: BaseException, kinds: tuple[type[BaseException], ...], not_this: type[BaseException] | None
) -> None:
    error = check(cause, *kinds)
    assert not_this is None or not isinstance(error, not_this) or not_this is BaseException
    again = pickle.loads(pickle.dumps(error))
    assert all(isinstance(again, kind) for kind in kinds)
    if isinstance(cause, Field):
        assert isinstance(again, Field) and (again.name, again.value) == ("lr", 3)


def test_a_type_that_nobody_else_finds_is_a_plain_error_there() -> None:
    class Here(ValueError):
        pass

    cause = Here("no")
    cause.lock = lambda: 1  # type: ignore[attr-defined]  # it cannot be pickled either
    error = check(cause, Here)
    assert type(pickle.loads(pickle.dumps(error))) is RunError
    assert type(error) is type(error_of_cause_type(run_error(), Here("another")))
    assert getattr(copy.copy(error), "lock", None) is cause.lock  # type: ignore[attr-defined]


def test_an_error_of_a_pool_within_a_rank_is_of_what_that_one_raised() -> None:
    inner = error_of_cause_type(run_error("inner failed"), ZeroDivisionError("by zero"))
    assert type(check(inner, ZeroDivisionError)) is type(inner)


@given(
    st.sampled_from([ValueError, KeyError, OSError, LookupError, RuntimeError, UnicodeError, ImportError, EOFError]),
    st.lists(st.sampled_from([ArithmeticError, TypeError, AssertionError, MemoryError, BufferError]), unique=True),
    st.booleans(),
    # Names that any such error has already are its own.
    st.dictionaries(st.text(min_size=1).filter(lambda name: not hasattr(run_error(), name)), st.integers() | st.text()),
)
def test_of_any_mixture(first: Any, others: list[Any], slots: bool, attributes: dict[str, Any]) -> None:
    space = {"__slots__": ("kept",)} if slots else {}
    kind = type("Mixed", (first, *others), space)
    cause = kind("no")
    vars(cause).update(attributes)
    error = check(cause, first, *others)
    assert all(getattr(error, name) == value for name, value in attributes.items())
