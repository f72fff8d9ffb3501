"""Loading of results and construction of errors for failed runs, in the threads that wait for them."""

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
from skyward_core.model.outcomes_states_and_alerts import ErrorInfo, Outcome, RootCause
from skyward_core.protocol.frame_codec import MAX_SHORT_TEXT
from skyward_core.runtime.rank_side_async_stream_and_map_calls import VALUES_BEFORE
from skyward_core.tasks.guarded_user_code import describe_exception, run_guarded
from skyward_core.transport.file_and_result_downloads import ResultDownload

Value = bytes | ResultDownload
Loaded = tuple[Any, BaseException | None]  # a loaded value and None, or None and the exception that the loading raised
# Opcodes that precede each class and function in a worker's pickle. Loading a class or function may run code.
GLOBAL_OPCODES = re.compile(rb"[\x82-\x84\x93]")


def already_fetched_error(run: str) -> PoolError:
    """Return the error for results that were already fetched, by this or another client."""
    return PoolError(f"The results of run {run} were already fetched.", hint=Hint("results", run))


def describe_failure(function: str, kind: str, outcomes: Iterable[Outcome], culprit: Outcome) -> str:
    """Describe a failed run in one line."""
    error = culprit.error or ErrorInfo(culprit.kind, "")
    description = {
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
    return f"{function} failed: {place} {description}" + (f" [of the others: {others}]" if others else "")


def describe_place(kind: str, outcome: Outcome) -> str:
    """Return the rank or task of an outcome as text. ``kind`` is the run's."""
    return f"rank {outcome.rank} (node {outcome.node})" if kind in ("broadcast", "map") else f"task {outcome.index}"


def error_with_cause(error: RunError, culprit: Outcome, value: Value | None) -> RunError:
    """Return a run's error with the root cause's exception as its cause.

    If possible, the returned error is also an instance of that exception's type.
    """
    cause = load_exception(culprit, value)
    error.results |= run_guarded(lambda: _pop_partial_values(cause))[0] or {}
    made, _ = run_guarded(lambda: error_of_cause_type(error, cause))
    if made is None:  # no combined error is possible, because the exception's class runs code when an attribute is read
        made = error
        made.__cause__ = cause
    return made


def _pop_partial_values(cause: BaseException) -> dict[int, Any]:
    """Remove and return the values, by item, that a map's call had computed before it failed."""
    attributes = cause.attributes if isinstance(cause, RemoteError) else vars(cause)
    first, data = attributes.pop(VALUES_BEFORE, (0, b""))
    return dict(enumerate(pickle.loads(data), first)) if data else {}


def load_exception(outcome: Outcome, value: Value | None) -> BaseException:
    """Return the exception behind an outcome, with its remote traceback."""
    info = outcome.error or ErrorInfo(outcome.kind, "")
    error: Any
    if outcome.kind == "raised":
        loaded, _ = load(value) if value else (None, None)
        error = loaded if issubclass(type(loaded), BaseException) else RemoteError(info.type, info.message)
    elif info.type == "TimeoutError":
        error = TimeoutError(f"rank {outcome.rank} {info.message}")
    else:
        error = RankExit(f"rank {outcome.rank}: {info.message}", outcome.exit_code, outcome.signal)
    if info.traceback and _cause_of(error) is None:
        _set_cause(error, RemoteTraceback(info.traceback))
    found: BaseException = error
    return found


# Use the slots of BaseException, because the user's class may define attributes of the same names.
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
    """Return the error of a run with a value that cannot be loaded here.

    Args:
        run: Id of the run.
        function: Name of the function.
        outcomes: Outcomes by index.
        rank: Rank that sent the value.
        place: Origin of the value, as the beginning of a sentence.
        what: Description of the value.
        error: Exception that loading it raised.
        results: Values of other calls by index.
    """
    kind, words = describe_exception(error)
    message = f"{what} cannot be loaded here: {kind}: {words}"
    cause = RootCause(rank, "returned", kind, message)
    failure = f"{function} failed: {place} {message}"
    return RunError(failure, run=run, function=function, outcomes=outcomes, root_cause=cause, results=results)


def load(value: Value) -> Loaded:
    """Unpickle a value that a rank sent. A downloaded file is read once and deleted.

    Returns:
        The value, or the exception that its own code raised.

    Raises:
        BaseException: For example KeyboardInterrupt of the user.
    """
    if not isinstance(value, bytes):
        return run_guarded(value.load)
    if len(value) > MAX_SHORT_TEXT or GLOBAL_OPCODES.search(value):
        return run_guarded(lambda: pickle.loads(value))
    try:
        return pickle.loads(value), None
    except Exception as error:  # noqa: BLE001  the caller names the value
        return None, error


CLASSES_KEPT = 256
HEAP_TYPE_FLAG = 1 << 9  # flag in a type's `__flags__` that is set if the class is defined in Python

# Types that a run's error must never inherit from. PoolError and Cancelled describe the pool or the run itself.
# StopIteration and StopAsyncIteration would end the caller's loops silently. ``except*`` would take groups apart.
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
# Names that Python looks up when a class is derived or an error is printed. A class that defines them is not combined,
# because its code would run.
RUNS_CODE = {"__init_subclass__", "__notes__"}
KIND = "_kind"  # attribute of a combined class that contains the type of the cause
# Attributes of a cause that have another meaning in a RunError.
HIDDEN_ATTRIBUTES = {"hint", "field", "__notes__", *RUN_ATTRIBUTES}
# With these attributes, Python suggests similar names from the scope of the code that prints the error.
MISSPELT: tuple[tuple[type[Exception], set[str]], ...] = ((AttributeError, {"name", "obj"}), (NameError, {"name"}))


def error_of_cause_type(error: RunError, cause: BaseException) -> RunError:
    """Return a run's error that is also an instance of the cause's type, so that handlers of this type catch it.

    If Python cannot combine RunError with the cause's type, the error uses the nearest base type for which it can.
    """
    caused = _make_error(type(cause), error.args, {**_attributes(cause), **vars(error)}, _members(cause))
    caused.__cause__ = cause
    return caused


def _make_error(
    kind: type, args: tuple[Any, ...], attributes: Mapping[str, Any], members: Mapping[str, Any]
) -> RunError:
    # Compare with None, because the error may define __len__ and be false.
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
        error.msg = args[0]  # the attribute that Python prints for a SyntaxError
    return error


def _base_types(kind: type) -> Iterator[type[Exception]]:
    """Return the types of a cause that an error can inherit from, nearest first."""
    of_all: tuple[type, ...] = RunError.__mro__
    # If the cause is a RuntimeError, the error has this type already, but gets the attributes of the cause.
    if kind is RuntimeError:
        yield RuntimeError
    for each in kind.__mro__:
        if each not in of_all and issubclass(each, Exception) and not issubclass(each, (RunError, *NEVER_COMBINED)):
            yield each


def _empty_instance(kind: type[Exception]) -> RunError | None:
    """Create an instance without running an ``__init__`` of the user's script."""
    made = _combined_class(kind)  # type: ignore[arg-type]  # types are hashable
    if made is None:
        return None
    for each in made.__mro__:
        if not each.__flags__ & HEAP_TYPE_FLAG:
            make: Any = each.__new__
            # Try the next base type, because this one rejects a class with another memory layout.
            with suppress(TypeError):
                return cast(RunError, make(made))
    return None


@lru_cache(CLASSES_KEPT)
def _combined_class(kind: type[Exception]) -> type[RunError] | None:
    """Return a class derived from RunError and the given type; None if impossible or if it would run user code."""
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
    except TypeError:  # Python cannot combine RunError with a built-in type of another memory layout
        return None


# -- parts of combined errors ------------------------------------------------------------------------------


def _attributes(cause: BaseException) -> dict[str, Any]:
    """Return the attributes that a script has set on an exception."""
    held: dict[str, Any] = object.__getattribute__(cause, "__dict__")
    return {name: value for name, value in held.items() if name not in HIDDEN_ATTRIBUTES}


def _members(error: BaseException) -> dict[str, Any]:
    """Return the attributes that an exception stores outside of its ``__dict__``, such as ``errno``."""
    found = {}
    for name, member in _descriptors(type(error)):
        with suppress(AttributeError):  # skip a slot that has no value
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


# -- copies and pickles ------------------------------------------------------------------------------------


def _copy(error: RunError) -> RunError:
    return _make_error(getattr(error, KIND), error.args, vars(error), _members(error))


def _reduce(error: RunError, protocol: int = 0) -> tuple[Any, ...]:
    """Reduce an error for pickling. If the cause's type cannot be imported, a plain :class:`RunError` is restored."""
    kind: type = getattr(error, KIND)
    own = {name: value for name, value in vars(error).items() if name in HIDDEN_ATTRIBUTES}
    more = {name: value for name, value in vars(error).items() if name not in own and _is_picklable(value)}
    members = {name: value for name, value in _members(error).items() if _is_picklable(value)}
    return _restore_error, (kind.__module__, kind.__qualname__, error.args, own | more, members)


def _is_picklable(value: Any) -> bool:
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:  # noqa: BLE001  a reducer may raise anything
        return False
    return True


def _restore_error(
    module: str, name: str, args: tuple[Any, ...], attributes: Mapping[str, Any], members: Mapping[str, Any]
) -> RunError:
    found: Any = None
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception:  # noqa: BLE001  an import may raise anything
        found = None
    return _make_error(found if isinstance(found, type) else RunError, args, attributes, members)
