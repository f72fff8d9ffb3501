"""Sweeps over arguments in scripts: a trial for each combination, side by side, none of which stops the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, overload

from skyward_core.api.operators import PoolOperations
from skyward_core.model.errors import Cancelled, PoolError, RunError, UsageError
from skyward_core.model.function import Function, PendingFunction
from skyward_core.pool.runs.run_results import load_exception
from skyward_core.pool.runs.scheduler import new_run_id
from skyward_core.store import pool_folder
from skyward_core.tasks.argument_parsing import MAX_COMBINATIONS
from skyward_core.tasks.guarded_user_code import describe_exception, safe_repr
from skyward_core.transport.background_loop import background_loop, submit
from skyward_core.views.pool_view import TrialSheet

if TYPE_CHECKING:
    from skyward_core.model.outcomes import Outcome
    from skyward_core.pool.runs.run import Run


@dataclass(slots=True, eq=False)
class Trial:
    """One combination of arguments, and what came of it.

    Attributes:
        place: which one, counted from 0.
        arguments: by name, as values.
        outcome: "waiting" until it has ended, then "returned", "raised", "exited", "lost" or "collateral".
        value: what the function returned; of a sweep with ``@`` a list by rank, unless gangs are of a part of a
            node's ranks: then the first one's.
        error: why there is no value, as an exception.
        numbers: the last number of each name that it logged (``sky.log``), of a sweep with ``@`` rank 0; None for what
            was not finite.
        seconds: how long it ran.
        run: id of its run.
    """

    place: int
    arguments: Mapping[str, Any]
    outcome: str = "waiting"
    value: Any = None
    error: BaseException | None = None
    numbers: Mapping[str, float | None] = field(default_factory=dict)
    seconds: float = 0.0
    run: str = ""

    @property
    def ok(self) -> bool:
        """Whether it has returned a value that could be loaded here."""
        return self.outcome == "returned" and self.error is None


class PendingTrials:
    """A sweep that has not happened yet, as :func:`sweep` makes it.

    ``p >> pool`` runs each combination on one rank, as many at a time as there are ranks, and gives the :class:`Trials`
    once all have ended. ``p > pool`` gives them at once, to be filled as they come. ``p @ pool`` runs each combination
    on every rank, as a gang, one combination after the other; ``p.with_nodes(2) @ pool`` on two nodes each, as many at
    a time as the pool has room for.

    Attributes:
        calls: one for each combination.
        arguments: of each, by name.
        nodes: how many nodes each combination has with ``@``; None for all.
        ranks: how many ranks instead; None where nodes are counted.
    """

    def __init__(
        self,
        calls: Sequence[PendingFunction[Any]],
        arguments: Sequence[Mapping[str, Any]],
        nodes: int | None = None,
        ranks: int | None = None,
    ) -> None:
        self.calls = tuple(calls)
        self.arguments = tuple(arguments)
        self.nodes = nodes
        self.ranks = ranks

    def with_nodes(self, nodes: int | None) -> PendingTrials:
        """The same with gangs of so many nodes: ``sweep.with_nodes(2) @ pool`` runs each combination on every rank of
        any two of the pool's nodes, as many of them side by side as the pool has nodes for.

        Args:
            nodes: how many; None for all.

        Raises:
            ValueError: it is no number of nodes.
        """
        _check_count("nodes", nodes)
        return PendingTrials(self.calls, self.arguments, nodes)

    def with_ranks(self, ranks: int | None) -> PendingTrials:
        """Return the same sweep with gangs of so many ranks: of the nodes that have so many. In a pool whose nodes have
        four each, ``sweep.with_ranks(8) @ pool`` is ``sweep.with_nodes(2) @ pool``, and 6 are refused.

        Args:
            ranks: how many; None for all.

        Raises:
            ValueError: it is no number of ranks.
        """
        _check_count("ranks", ranks)
        return PendingTrials(self.calls, self.arguments, ranks=ranks)

    def __len__(self) -> int:
        return len(self.calls)

    def __rshift__(self, pool: PoolOperations) -> Trials:
        return _start_trials(self, pool, ">>").wait()

    def __gt__(self, pool: PoolOperations) -> Trials:
        return _start_trials(self, pool, ">")

    def __matmul__(self, pool: PoolOperations) -> Trials:
        return _start_trials(self, pool, "@").wait()

    def on_all(self, pool: PoolOperations) -> Trials:
        """Begin what ``@`` runs, and wait for nothing: the trials are filled as they come.

        Args:
            pool: where it runs.

        Raises:
            UsageError: the pool has fewer nodes than each combination is to have, or no nodes with so many ranks.
            NotPicklableError: an argument cannot travel.
            PoolError: the pool is not up.
        """
        return _start_trials(self, pool, "@")

    def __repr__(self) -> str:
        return f"<{len(self)} trials of {self.calls[0].name}(…) not run yet: use >>, > or @ with a pool>"


def _check_count(what: str, many: object) -> None:
    if many is not None and (not isinstance(many, int) or isinstance(many, bool) or many < 1):
        raise ValueError(f"{what} must be a number of them, 1 at least, or None for all, not {many!r:.80}")


def sweep(fn: Function[..., Any], /, **arguments: Any) -> PendingTrials:
    """Every combination of some arguments, as calls of a function.

        trials = sky.sweep(train, lr=[0.1, 0.01], seed=range(5)) >> compute
        best = min((t for t in trials if t.ok), key=lambda t: t.numbers["loss"])

    Args:
        fn: a ``@function``.
        **arguments: each a list, tuple, range, set or other series of values, which are all tried, or one value, which
            is the same in all; texts and dictionaries are one value. For an argument that is a list itself give a list
            of lists.

    Raises:
        TypeError: ``fn`` is no ``@function``.
        UsageError: an argument has no values, there are more than 4,096 combinations, or it is a generator function.
    """
    if not isinstance(fn, Function):
        raise TypeError(f"sweep takes a @function and its arguments, not {fn!r:.80}")
    lists = {name: _values(name, given) for name, given in arguments.items()}
    many = 1
    for values in lists.values():
        many *= len(values)
    if many > MAX_COMBINATIONS:
        raise UsageError(
            f"these are {many:,} combinations of arguments, of {MAX_COMBINATIONS:,} at most: give fewer values"
        )
    combined = [dict(zip(lists, values, strict=True)) for values in product(*lists.values())]
    calls = [fn(**each) for each in combined]
    if calls[0].streams:
        raise UsageError(f"{calls[0].name} is a generator function, and a sweep wants one result of each call")
    return PendingTrials(calls, combined)


def _values(name: str, given: Any) -> list[Any]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        return [given]
    try:
        values = list(given)
    except TypeError:  # an array without dimensions says that it can be gone through, and cannot
        return [given]
    if not values:
        raise UsageError(f"argument {name} has no values: nothing would run")
    return values


class Trials(Sequence[Trial]):
    """The trials of a sweep, in the order of the combinations, the last argument changing first. Filled by a thread of
    its own; ``print(trials)`` shows a table."""

    def __init__(self, pending: PendingTrials) -> None:
        self._trials = [Trial(place, each) for place, each in enumerate(pending.arguments)]
        self._ended_trials: list[Trial] = []
        self._news = threading.Condition()
        self._failure: BaseException | None = None
        self._over = False
        self._cancel: Callable[[], None] = lambda: None

    @overload
    def __getitem__(self, at: int) -> Trial: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Trial]: ...
    def __getitem__(self, at: int | slice) -> Trial | Sequence[Trial]:
        return self._trials[at]

    def __len__(self) -> int:
        return len(self._trials)

    def as_completed(self) -> Iterator[Trial]:
        """Each trial as soon as it has ended.

        Raises:
            Cancelled: the sweep was cancelled, after those that had ended.
            PoolError: the pool has ended, likewise.
        """
        given = 0
        while True:
            with self._news:
                while given == len(self._ended_trials) and not self._over:
                    self._news.wait()
                if given == len(self._ended_trials):
                    break
                trial = self._ended_trials[given]
            given += 1
            yield trial
        if self._failure is not None:
            raise self._failure

    def wait(self) -> Trials:
        """Wait until all have ended. An exception that ends the waiting, ctrl-c among them, cancels the sweep.

        Raises:
            Cancelled: the sweep was cancelled; the trials that had ended have what came of them.
            PoolError: the pool has ended, likewise.
        """
        try:
            for _ in self.as_completed():
                pass
        except BaseException:
            self.cancel()  # does nothing to one that has ended
            raise
        return self

    def cancel(self) -> None:
        """Stop what still runs, and begin nothing more."""
        self._cancel()

    def __str__(self) -> str:
        rows = self._rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        return "\n".join(map(_safe, lines))

    def _repr_html_(self) -> str:
        """The same table, as a notebook shows it."""
        from skyward_core.api.notebook_display import table_html

        head, *rows = self._rows()
        return table_html(f"{len(self)} trials, {len(self._ended_trials)} ended", head, rows)

    def _rows(self) -> list[list[str]]:
        names = dict.fromkeys(name for trial in self for name in trial.numbers)
        rows = [["#", *self[0].arguments, "outcome", *names, "result"]]
        for trial in self:
            numbers = (trial.numbers.get(name) for name in names)
            shown = ("" if number is None else f"{number:g}" for number in numbers)
            result = safe_repr(trial.value) if trial.ok else "" if trial.error is None else _format_error(trial.error)
            texts = map(_text, trial.arguments.values())
            rows.append([str(trial.place), *texts, trial.outcome, *shown, result[:200]])
        return rows

    def __repr__(self) -> str:
        return f"<{len(self)} trials, {len(self._ended_trials)} ended>"

    # -- filling it --------------------------------------------------------------------------------------

    def _run_in_thread(self, work: Callable[[], None]) -> None:
        """Have a thread do what ends the trials one by one."""

        def fill() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  told to who waits
                self._failure = error
            with self._news:
                self._over = True
                self._news.notify_all()

        threading.Thread(target=fill, name="trials", daemon=True).start()

    def _record_trial(self, place: int, outcome: Outcome, run: str, value: Any, error: BaseException | None) -> None:
        trial = self._trials[place]
        trial.outcome, trial.seconds, trial.run = outcome.kind, outcome.seconds, run
        trial.numbers = {name: gist[0] for name, gist in (outcome.numbers or {}).items()}
        trial.value, trial.error = value, error
        with self._news:
            self._ended_trials.append(trial)
            self._news.notify_all()


def _start_trials(pending: PendingTrials, pool: Any, operator: str) -> Trials:
    if not isinstance(pool, PoolOperations):
        raise TypeError(f"right of {operator} stands a pool (with sky.Compute(...) as pool), not {pool!r:.80}")
    if (pending.nodes is not None or pending.ranks is not None) and operator != "@":
        what = "nodes" if pending.ranks is None else "ranks"
        raise UsageError(
            f"with {operator} each combination runs on one rank; with_{what} says how many {what} each has with @: "
            "leave it out, or use @"
        )
    trials = Trials(pending)
    if operator == "@":
        nodes = pending.nodes if pending.ranks is None else pool._gang_nodes(pending.ranks)
        _run_as_gangs(trials, pending, pool, nodes)
    else:
        _run_on_ranks(trials, pending, pool)
    return trials


def _run_on_ranks(trials: Trials, pending: PendingTrials, pool: PoolOperations) -> None:
    run_id = new_run_id()
    try:
        pool_folder.save_trials(pool.pool.row.key, run_id, _make_sheet(pending))
    except OSError as error:
        raise PoolError(f"nothing was begun, for the combinations cannot be written down: {error}") from error
    run = pool._start_sweep(pending.calls, run_id)
    trials._cancel = lambda: pool._cancel(run)

    def fill() -> None:
        while (arrived := run.arrivals.get())[0] != "end":
            if arrived[0] == "outcome":
                outcome = run.outcomes[arrived[1]]
                trials._record_trial(outcome.index, outcome, run.id, *_result(run, outcome))
        if run.state not in ("done", "failed"):
            raise run.error()

    trials._run_in_thread(fill)


def _result(run: Run, outcome: Outcome) -> tuple[Any, BaseException | None]:
    """The value of a call, or the exception that stands for its lack."""
    if outcome.kind == "returned":
        try:
            return run.value(outcome.index), None
        except RunError as error:  # what it is made of may be missing here
            return None, error
    return None, load_exception(outcome, run.values.pop(outcome.index, None))


def _make_sheet(pending: PendingTrials) -> TrialSheet:
    names = list(pending.arguments[0])
    return TrialSheet.new(names, [[_text(each[name]) for name in names] for each in pending.arguments])


def _run_as_gangs(trials: Trials, pending: PendingTrials, pool: PoolOperations, nodes: int | None) -> None:
    arrived: SimpleQueue[tuple[int, Run] | None] = SimpleQueue()
    sweep = pool._start_gangs(pending.calls, _make_sheet(pending), nodes, lambda *ended: arrived.put(ended))
    over = submit(sweep.wait())
    over.add_done_callback(lambda _: arrived.put(None))

    def cancel() -> None:
        background_loop().call_soon_threadsafe(sweep.cancel)

    trials._cancel = cancel

    def fill() -> None:
        while (ended := arrived.get()) is not None:
            place, run = ended
            if run.state not in ("done", "failed"):
                continue  # nothing is known of it
            first = run.outcomes[0]
            try:
                trials._record_trial(place, first, run.id, run.results(), None)
            except Exception as error:  # noqa: BLE001  of whatever kind the run's failure is
                ends = run.outcomes.values()
                cause = next((out for out in ends if out.kind not in ("returned", "collateral")), first)
                trials._record_trial(place, cause, run.id, None, error)
        over.result()
        if sweep.cancelled:
            raise Cancelled("the sweep was cancelled")

    trials._run_in_thread(fill)


def _text(value: Any) -> str:
    return value if type(value) is str else safe_repr(value)


def _format_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {describe_exception(error)[1]}"


def _safe(text: str) -> str:
    from skyward_core.util.terminal_safe_text import sanitize_line

    return sanitize_line(text)
