"""Errors of failed runs, and loading of values, for waiting threads."""

from __future__ import annotations

import importlib
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, cast

from skyward_core.model.errors import (
    Cancelled,
    Hint,
    PoolError,
    RankExit,
    RemoteError,
    RemoteTraceback,
    RunError,
)
from skyward_core.model.outcomes import ErrorInfo, Outcome, RootCause
from skyward_core.protocol.frame_codec import MAX_SHORT_TEXT
from skyward_core.runtime.async_and_mapped_calls import VALUES_BEFORE
from skyward_core.tasks.guarded_user_code import describe_exception, run_guarded
from skyward_core.transport.file_and_result_downloads import ResultDownload

Value = bytes | ResultDownload
Loaded = tuple[Any, BaseException | None]  # a value, or what loading it raised
GLOBAL_OPCODES = re.compile(
    rb"[\x82-\x84\x93]"
)  # in a worker's pickles ahead of each class and function: code that may run


def already_fetched_error(run: str) -> PoolError:
    """Return the error of a client that asks the nodes for results which another one, or it itself, has got."""
    return PoolError(f"the results of run {run} have been fetched before", hint=Hint("results", run))


def describe_failure(function: str, kind: str, outcomes: Iterable[Outcome], culprit: Outcome) -> str:
    """A failed run in one line."""
    error = culprit.error or ErrorInfo(culprit.kind, "")
    what = {
        "raised": f"raised {error.type}: {error.message}",
        "exited": error.message,
        "lost": f"was lost: {error.message}",
        "collateral": f"was stopped: {error.message}",
    }[culprit.kind]
    counts: dict[str, int] = {}
    for outcome in outcomes:
        if outcome is not culprit:
            counts[outcome.kind] = counts.get(outcome.kind, 0) + 1
    others = ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()))
    place = describe_place(kind, culprit)
    return f"{function} failed: {place} {what}" + (f" [of the others: {others}]" if others else "")


def describe_place(kind: str, outcome: Outcome) -> str:
    """Whose outcome it is, in words; ``kind`` is the run's."""
    return f"rank {outcome.rank} (node {outcome.node})" if kind in ("broadcast", "map") else f"task {outcome.index}"


def error_with_cause(error: RunError, culprit: Outcome, value: Value | None) -> RunError:
    """A run's error with its cause, as what the culprit raised where that can be: it may be caught as that."""
    cause = load_exception(culprit, value)
    error.results |= run_guarded(lambda: _pop_partial_values(cause))[0] or {}
    made, _ = run_guarded(lambda: error_of_cause_type(error, cause))
    if made is None:  # its class runs code where others have attributes
        made = error
        made.__cause__ = cause
    return made


def _pop_partial_values(cause: BaseException) -> dict[int, Any]:
    """Take the values out of a map's exception that its call had computed before; returns them by item."""
    attributes = cause.attributes if isinstance(cause, RemoteError) else vars(cause)
    first, data = attributes.pop(VALUES_BEFORE, (0, b""))
    return dict(enumerate(pickle.loads(data), first)) if data else {}


def load_exception(outcome: Outcome, value: Value | None) -> BaseException:
    """The exception behind an outcome, with its remote traceback."""
    info = outcome.error or ErrorInfo(outcome.kind, "")
    error: Any
    if outcome.kind == "raised":
        loaded, _ = load(value) if value else (None, None)
        is_error = issubclass(type(loaded), BaseException)
        error = loaded if is_error else RemoteError(info.type, info.message)
    elif info.type == "TimeoutError":
        error = TimeoutError(f"rank {outcome.rank} {info.message}")
    else:
        error = RankExit(f"rank {outcome.rank}: {info.message}", outcome.exit_code, outcome.signal)
    if info.traceback and _cause_of(error) is None:
        _set_cause(error, RemoteTraceback(info.traceback))
    found: BaseException = error
    return found


# A class of the user's may define attributes of these names itself.
_cause_of = BaseException.__dict__["__cause__"].__get__
_set_cause = BaseException.__dict__["__cause__"].__set__


def unloadable_error(
    run: str,
    function: str,
    outcomes: Mapping[int, Outcome],
    rank: int,
    place: str,
    what: str,
    error: BaseException,
    results: Mapping[int, Any],
) -> RunError:
    """Return the failure of a run of which something does not load here.

    Args:
        place: where that comes from, as the beginning of a sentence.
        what: it, in words.
        error: what loading it raised.
    """
    kind, words = describe_exception(error)
    message = f"{what} cannot be loaded here: {kind}: {words}"
    cause = RootCause(rank, "returned", kind, message)
    said = f"{function} failed: {place} {message}"
    return RunError(said, run=run, function=function, outcomes=outcomes, root_cause=cause, results=results)


def load(value: Value) -> Loaded:
    """Unpickle what a rank sent; what has landed is read once and removed.

    Raises:
        BaseException: the user's ctrl-c, and the like; whatever the value's own code raises is returned.
    """
    if not isinstance(value, bytes):
        return run_guarded(value.load)
    if len(value) > MAX_SHORT_TEXT or GLOBAL_OPCODES.search(value):
        return run_guarded(lambda: pickle.loads(value))
    try:
        return pickle.loads(value), None
    except Exception as error:  # noqa: BLE001  the caller reports which value it was
        return None, error


CLASSES_KEPT = 256
HEAP_TYPE_FLAG = 1 << 9  # a flag of types

# Errors of these kinds say something else where they come out of a call: that the pool is amiss, the run cancelled. The
# next two would end loops in silence. Groups are taken apart by ``except*``.
NEVER_COMBINED = (PoolError, Cancelled, StopIteration, StopAsyncIteration, BaseExceptionGroup)

NOT_SET = {*dir(BaseException), "__dict__", "__weakref__"}
RUN_ATTRIBUTES = {"run", "function", "outcomes", "root_cause", "results"}
RUN_ERROR_MEMBERS = set(dir(RunError)) - {
    "__new__",
    "__module__",
    "__doc__",
    "__dict__",
    "__weakref__",
    "__annotations__",
}
# What Python itself looks for: when such a class is made, and in each error that it prints.
RUNS_CODE = {"__init_subclass__", "__notes__"}
KIND = "_kind"  # of such a class the type of the cause
HIDDEN_ATTRIBUTES = {
    "hint",
    "field",
    "__notes__",
    *RUN_ATTRIBUTES,
}  # attributes of a cause that would say something else here
# Where these stand in an error, Python looks among the names of whoever prints it for one that was meant.
MISSPELT: tuple[tuple[type[Exception], set[str]], ...] = (
    (AttributeError, {"name", "obj"}),
    (NameError, {"name"}),
)


def error_of_cause_type(error: RunError, cause: BaseException) -> RunError:
    """A run's error with its cause; of the cause's type, too, where there can be such a class.

    Where there can be none for that type itself, there may be one for a type that it derives from: what catches
    those catches the error.
    """
    caused = _make_error(type(cause), error.args, {**_attributes(cause), **vars(error)}, _members(cause))
    caused.__cause__ = cause
    return caused


def _make_error(
    kind: type, args: tuple[Any, ...], attributes: Mapping[str, Any], members: Mapping[str, Any]
) -> RunError:
    # Not by its truth: it may have a length.
    error = next((made for made in map(_empty_instance, _base_types(kind)) if made is not None), None)
    if error is None:
        error = RunError.__new__(RunError)
        attributes = {name: value for name, value in attributes.items() if name in HIDDEN_ATTRIBUTES}
    error.args = args
    vars(error).update(attributes)
    for name, member in _descriptors(type(error)):
        if name in members:
            member.__set__(error, members[name])
    if isinstance(error, SyntaxError):
        error.msg = args[0]  # which is what is printed of those
    return error


def _base_types(kind: type) -> Iterator[type[Exception]]:
    """Those types of a cause that an error can take over, the nearest first."""
    of_all: tuple[type, ...] = RunError.__mro__
    if kind is RuntimeError:  # of the class there is something to take over all the same: attributes
        yield RuntimeError
    for each in kind.__mro__:
        if each not in of_all and issubclass(each, Exception) and not issubclass(each, (RunError, *NEVER_COMBINED)):
            yield each


def _empty_instance(kind: type[Exception]) -> RunError | None:
    """An empty one, for no ``__init__`` of a script's to see."""
    made = _combined_class(kind)  # type: ignore[arg-type]  # types can be hashed, whatever theirs say
    if made is None:
        return None
    for each in made.__mro__:
        if not each.__flags__ & HEAP_TYPE_FLAG:
            make: Any = each.__new__
            with suppress(TypeError):  # it may be another of its types that lays out its memory
                return cast(RunError, make(made))
    return None


@lru_cache(CLASSES_KEPT)
def _combined_class(kind: type[Exception]) -> type[RunError] | None:
    """A class of both; None where there can be none, or to make one would run code of a script's."""
    if type(kind) is not type:
        return None
    given: dict[str, Any] = {}
    for each in kind.__mro__:
        if not each.__flags__ & HEAP_TYPE_FLAG:
            continue
        for name, value in vars(each).items():
            if name in RUNS_CODE or (name in RUN_ATTRIBUTES and hasattr(value, "__set__")):
                return None
            if name in RUN_ERROR_MEMBERS:
                given[name] = getattr(RunError, name)
    given |= {name: getattr(RunError, name) for name in ("__module__", "__qualname__", "__doc__", "__repr__")}
    given |= {"__reduce__": _reduce, "__reduce_ex__": _reduce, "__copy__": _copy, KIND: kind}
    try:
        return type(RunError.__name__, (RunError, kind), given)
    except TypeError:  # their memory is laid out in ways that do not go together
        return None


# -- what such an error is made of -----------------------------------------------------------------------


def _attributes(cause: BaseException) -> dict[str, Any]:
    """What a script has set on it."""
    held: dict[str, Any] = object.__getattribute__(cause, "__dict__")
    return {name: value for name, value in held.items() if name not in HIDDEN_ATTRIBUTES}


def _members(error: BaseException) -> dict[str, Any]:
    """What stands elsewhere than in its dictionary, such as an ``errno``."""
    found = {}
    for name, member in _descriptors(type(error)):
        with suppress(AttributeError):  # nobody has set it
            found[name] = member.__get__(error)
    for kind, names in MISSPELT:
        if isinstance(error, kind):
            found = {name: value for name, value in found.items() if name not in names}
    return found


def _descriptors(kind: type) -> Iterator[tuple[str, Any]]:
    for each in kind.__mro__:
        for name, value in vars(each).items():
            if isinstance(value, (GetSetDescriptorType, MemberDescriptorType)) and name not in NOT_SET:
                yield name, value


# -- copies and pickles ----------------------------------------------------------------------------------


def _copy(error: RunError) -> RunError:
    return _make_error(getattr(error, KIND), error.args, vars(error), _members(error))


def _reduce(error: RunError, protocol: int = 0) -> tuple[Any, ...]:
    """Where nobody finds the cause's type, it is a plain :class:`RunError` that comes of the pickle."""
    kind: type = getattr(error, KIND)
    own = {name: value for name, value in vars(error).items() if name in HIDDEN_ATTRIBUTES}
    more = {name: value for name, value in vars(error).items() if name not in own and _is_picklable(value)}
    members = {name: value for name, value in _members(error).items() if _is_picklable(value)}
    return _restore_error, (kind.__module__, kind.__qualname__, error.args, own | more, members)


def _is_picklable(value: Any) -> bool:
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:  # noqa: BLE001  a reducer may raise anything; that is the answer asked for
        return False
    return True


def _restore_error(
    module: str,
    name: str,
    args: tuple[Any, ...],
    attributes: Mapping[str, Any],
    members: Mapping[str, Any],
) -> RunError:
    found: Any = None
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception:  # noqa: BLE001  what is imported may raise anything; then there is no such type here
        found = None
    return _make_error(found if isinstance(found, type) else RunError, args, attributes, members)
