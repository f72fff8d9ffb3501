"""What came of a run, as the threads that wait for it read it: values, or the error that stands for their lack."""

from __future__ import annotations

import pickle
import re
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from ...model.errors import Cancelled, PoolError, RankExit, RemoteError, RemoteTraceback, RunError
from ...model.hint import Hint
from ...model.outcome import ErrorInfo, Outcome, RootCause
from ...model.states import RunKind, RunStatus
from ...runtime.map_items import VALUES_BEFORE
from ...tasks.value_code import tried, words_of
from ...transport.incoming_result import Landing
from ...wire.frames import SHORT
from ..pool_end import PoolEnd

Value = bytes | Landing
Loaded = tuple[Any, BaseException | None]  # a value, or what loading it raised
NAMED = re.compile(
    rb"[\x82-\x84\x93]"
)  # in a worker's pickles ahead of each class and function: code that may run


class RunResults:
    """One run's. The pool's loop fills it; it is read by other threads.

    Attributes:
        pool: the pool's name.
        state: how it is with the run.
        outcomes: by index, as they have come.
        values: what returned calls gave and failed ones raised, pickled, by index, until it is loaded.
    """

    __slots__ = (
        "_arrived", "_ending", "_loaded", "_unread", "_unsent", "cancelled", "id", "kind", "name", "outcomes", "pool",
        "root_cause", "state", "total", "values",
    )  # fmt: skip

    def __init__(self, pool: str, run: str, kind: RunKind, name: str, total: int) -> None:
        self.pool = pool
        self.id = run
        self.kind = kind
        self.name = name
        self.total = total
        self.state: RunStatus = "running"
        self.cancelled = ""  # why it was
        self.outcomes: dict[int, Outcome] = {}
        self.values: dict[int, Value] = {}
        self.root_cause: RootCause | None = None
        self._arrived: list[Outcome] = []
        self._loaded: dict[int, Future[Loaded]] = {}
        self._ending: PoolEnd | None = None
        self._unread = threading.Lock()  # held from the first call of `results` on
        self._unsent = 0  # tasks that no node had been given when this client left

    def name_of(self, index: int) -> str:
        """Of which function a call was: those of a group may be of several."""
        return self.name

    def value(self, index: int) -> Any:
        """Load what a rank returned; user code may run in here, so never on the loop.

        Raises:
            RunError: it cannot be loaded here; the cause says why.
        """
        value, early = self.values.pop(index), self._loaded.pop(index, None)
        loaded, failure = load(value) if early is None else early.result()
        if failure is not None:
            raise self._unloadable(index, failure) from failure
        return loaded

    def _unloadable(self, index: int, error: BaseException) -> RunError:
        outcome = self.outcomes[index]
        place = place_of(self.kind, outcome)
        return self._not_loaded(index, outcome.rank, f"{place} returned, but", "its result", error)

    def _not_loaded(self, index: int, rank: int, place: str, what: str, error: BaseException) -> RunError:
        """Return the failure of a run of which one value does not load here; values of the others are in it."""
        ended = [(i, out.kind) for i, out in sorted(self.outcomes.items()) if i != index]
        loaded = {i: self.load_early(i) for i, kind in ended if kind == "returned" and i in self.values}
        results = {i: value for i, (value, failure) in loaded.items() if failure is None}
        return unloadable(self.id, self.name_of(index), self.outcomes, rank, place, what, error, results)

    def _loadable(self) -> tuple[dict[int, Any], RunError | None]:
        """The values that are here and load, by index, and the first failure of one that does not."""
        values: dict[int, Any] = {}
        failure: RunError | None = None
        for index in sorted(self.values):
            if self.outcomes[index].kind == "returned":
                try:
                    values[index] = self.value(index)
                except RunError as error:
                    failure = failure or error
        return values, failure

    def load_early(self, index: int) -> Loaded:
        """Load what a rank returned, once, perhaps while others still run; :meth:`value` then gives it."""
        if (found := self._loaded.get(index)) is None:
            found = self._loaded[index] = Future()
            try:
                found.set_result(load(self.values[index]))
            except BaseException as error:  # the user's ctrl-c
                found.set_exception(error)
                raise
        return found.result()

    def results(self) -> list[Any]:
        """Return all values by index, the first time.

        Raises:
            RunError, Cancelled: it did not succeed, or a value cannot be loaded here; the others are in ``results``.
            PoolGone: the pool ended before it had.
            PoolError: this client left the pool before it had, or another caller has got the values.
        """
        if not self._unread.acquire(blocking=False):
            raise fetched_before(self.id)
        if self.state != "done":
            raise self.error()
        values, failure = self._loadable()
        if failure is not None:
            failure.results = values
            raise failure
        return [values[index] for index in range(self.total)]

    def error(self) -> Exception:
        """The failure as an exception, the user's own one as its cause."""
        if self._ending is not None:
            return self._ending.error()
        if self.state == "left":
            goes_on = f"it goes on there, and sky.attach({self.pool!r}).wait({self.id!r}) gives its results"
            missing = []
            if here := len(self.outcomes) if self.kind != "broadcast" else 0:
                missing.append(f"{here} of its {self.total} results had come here, and no node keeps those")
            if self._unsent:
                missing.append(
                    f"{self._unsent} of its {self.total} tasks had been sent to no node, and are not run"
                )
            goes_on = "; ".join(missing) or goes_on
            left = f"this client left pool {self.pool} while run {self.id} of {self.name} was under way"
            return PoolError(f"{left}; {goes_on}")
        if self.state == "cancelled" or self.root_cause is None:
            why = f" ({self.cancelled})" if self.cancelled else ""
            return Cancelled(f"run {self.id} of {self.name} was cancelled{why}")
        cause = self.root_cause
        culprit = next(o for o in self._arrived if RootCause.of(o) == cause)
        partial, _ = self._loadable()
        name = self.name_of(culprit.index)
        error = RunError(
            describe(name, self.kind, self.outcomes.values(), culprit),
            run=self.id,
            function=name,
            outcomes=self.outcomes,
            root_cause=cause,
            results=partial,
        )
        return caused(error, culprit, self.values.get(culprit.index))


def fetched_before(run: str) -> PoolError:
    """Return the error of a client that asks the nodes for results which another one, or it itself, has got."""
    return PoolError(f"the results of run {run} have been fetched before", hint=Hint("results", run))


def describe(function: str, kind: str, outcomes: Iterable[Outcome], culprit: Outcome) -> str:
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
    place = place_of(kind, culprit)
    return f"{function} failed: {place} {what}" + (f" [of the others: {others}]" if others else "")


def place_of(kind: str, outcome: Outcome) -> str:
    """Whose outcome it is, in words; ``kind`` is the run's."""
    return (
        f"rank {outcome.rank} (node {outcome.node})"
        if kind in ("broadcast", "map")
        else f"task {outcome.index}"
    )


def caused(error: RunError, culprit: Outcome, value: Value | None) -> RunError:
    """A run's error with its cause, as what the culprit raised where that can be: it may be caught as that."""
    from ...model.caused_error import of_cause  # few runs fail

    cause = rebuild(culprit, value)
    error.results |= tried(lambda: _values_before(cause))[0] or {}
    made, _ = tried(lambda: of_cause(error, cause))
    if made is None:  # its class runs code where others have attributes
        made = error
        made.__cause__ = cause
    return made


def _values_before(cause: BaseException) -> dict[int, Any]:
    """Take the values out of a map's exception that its call had computed before; returns them by item."""
    attributes = cause.attributes if isinstance(cause, RemoteError) else vars(cause)
    first, data = attributes.pop(VALUES_BEFORE, (0, b""))
    return dict(enumerate(pickle.loads(data), first)) if data else {}


def rebuild(outcome: Outcome, value: Value | None) -> BaseException:
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


def unloadable(
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
    kind, words = words_of(error)
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
        return tried(value.load)
    if len(value) > SHORT or NAMED.search(value):
        return tried(lambda: pickle.loads(value))
    try:
        return pickle.loads(value), None
    except Exception as error:  # noqa: BLE001  the caller reports which value it was
        return None, error
