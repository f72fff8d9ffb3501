"""Hyperparameter sweeps in scripts: one independent trial for each combination of arguments."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, overload

from skyward_core.api.pool_operations import PoolOperations
from skyward_core.model.errors import Cancelled, RunError, UsageError, convert_errors
from skyward_core.model.function import Function, PendingFunction
from skyward_core.pool.runs.result_loading_and_run_errors import load_exception
from skyward_core.pool.runs.scheduler import new_run_id
from skyward_core.store import sweep_trial_files
from skyward_core.tasks.argument_parsing_and_sweeps import MAX_COMBINATIONS
from skyward_core.tasks.guarded_user_code import describe_exception, safe_repr
from skyward_core.transport.background_loop import background_loop, submit
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.sweep_argument_combinations import TrialSheet

if TYPE_CHECKING:
    from skyward_core.model.outcomes_states_and_alerts import Outcome
    from skyward_core.pool.runs.run import Run


@dataclass(slots=True, eq=False)
class Trial:
    """One combination of arguments and its outcome.

    Attributes:
        place: Index of the combination, counted from 0.
        arguments: Values by argument name.
        outcome: "waiting" until the trial has ended, then "returned", "raised", "exited", "lost" or "collateral".
        value: Return value of the function. In a sweep with ``@``: a list of values by rank. If a gang uses only some
            ranks of a node: the value of the gang's first rank.
        error: Exception that explains a missing value.
        numbers: Last value of each metric that the trial logged (``sky.log``). In a sweep with ``@``: the metrics of
            rank 0. None for values that were not finite.
        seconds: Duration in seconds.
        run: Id of the trial's run.
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
        """Whether the trial returned a value that could be loaded on this machine."""
        return self.outcome == "returned" and self.error is None


class PendingTrials:
    """Sweep that has not started, as :func:`sweep` returns it.

    ``p >> pool`` runs each combination on one rank, with as many trials at a time as there are ranks, and returns the
    :class:`Trials` after all trials have ended. ``p > pool`` returns the trials at once and fills them as they end.
    ``p @ pool`` runs each combination as a gang on all ranks, one combination after the other. ``p.with_nodes(2) @
    pool`` uses gangs of two nodes; as many gangs run at a time as fit on the pool's nodes.

    Attributes:
        calls: One call for each combination.
        arguments: For each combination, its arguments by name.
        nodes: Nodes of each gang with ``@``. None for all.
    """

    def __init__(
        self,
        calls: Sequence[PendingFunction[Any]],
        arguments: Sequence[Mapping[str, Any]],
        nodes: int | None = None,
    ) -> None:
        self.calls = tuple(calls)
        self.arguments = tuple(arguments)
        self.nodes = nodes

    def with_nodes(self, nodes: int | None) -> PendingTrials:
        """Return the same sweep with gangs of a number of nodes.

        ``sweep.with_nodes(2) @ pool`` runs each combination on all ranks of two nodes. As many gangs run at a time as
        fit on the pool's nodes.

        Args:
            nodes: Nodes of each gang. None for all.

        Raises:
            ValueError: If ``nodes`` is not a positive integer.
        """
        if nodes is not None and (not isinstance(nodes, int) or isinstance(nodes, bool) or nodes < 1):
            raise ValueError(f"nodes must be a positive integer, or None for all, got {nodes!r:.80}")
        return PendingTrials(self.calls, self.arguments, nodes)

    def __len__(self) -> int:
        return len(self.calls)

    def __rshift__(self, pool: PoolOperations) -> Trials:
        return _start_trials(self, pool, ">>").wait()

    def __gt__(self, pool: PoolOperations) -> Trials:
        return _start_trials(self, pool, ">")

    def __matmul__(self, pool: PoolOperations) -> Trials:
        return _start_trials(self, pool, "@").wait()

    def on_all(self, pool: PoolOperations) -> Trials:
        """Start the sweep as ``@`` does, without waiting: the trials are filled as they end.

        Args:
            pool: The pool that runs the sweep.

        Raises:
            UsageError: If the pool has fewer nodes than each gang needs.
            NotPicklableError: If an argument cannot be pickled.
            PoolError: If the pool is not up.
        """
        return _start_trials(self, pool, "@")

    def __repr__(self) -> str:
        return f"<{len(self)} trials of {self.calls[0].name}(…), not started: use >>, > or @ with a pool>"


def sweep(fn: Function[..., Any], /, **arguments: Any) -> PendingTrials:
    """Return a sweep: one call of a function for every combination of argument values.

        trials = sky.sweep(train, lr=[0.1, 0.01], seed=range(5)) >> compute
        best = min((t for t in trials if t.ok), key=lambda t: t.numbers["loss"])

    Args:
        fn: A ``@function``.
        **arguments: For each argument a list, tuple, range, set or other iterable of values to try, or one value for
            all trials. Strings and dictionaries count as one value. Give a list of lists for an argument that is itself
            a list.

    Raises:
        TypeError: If ``fn`` is not a ``@function``.
        UsageError: If an argument has no values, if there are more than 4,096 combinations, or if the function is a
            generator function.
    """
    if not isinstance(fn, Function):
        raise TypeError(f"sweep takes a @function and its arguments, got {fn!r:.80}")
    lists = {name: _values(name, given) for name, given in arguments.items()}
    count = prod(map(len, lists.values()))
    if count > MAX_COMBINATIONS:
        raise UsageError(
            f"the sweep has {count:,} combinations of arguments, more than {MAX_COMBINATIONS:,}. Give fewer values."
        )
    combined = [dict(zip(lists, values, strict=True)) for values in product(*lists.values())]
    calls = [fn(**each) for each in combined]
    if calls[0].streams:
        raise UsageError(f"{calls[0].name} is a generator function, but a sweep needs one result of each call")
    return PendingTrials(calls, combined)


def _values(name: str, given: Any) -> list[Any]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        return [given]
    try:
        values = list(given)
    except TypeError:  # a 0-d NumPy array has __iter__ but raises a TypeError if iterated, so it counts as one value
        return [given]
    if not values:
        raise UsageError(f"argument {name} has no values. Give at least one.")
    return values


class Trials(Sequence[Trial]):
    """Trials of a sweep, in the order of the combinations; the last argument changes fastest.

    A background thread fills the trials as they end. ``print(trials)`` shows a table.
    """

    def __init__(self, pending: PendingTrials) -> None:
        self._trials = [Trial(place, each) for place, each in enumerate(pending.arguments)]
        self._ended_trials: list[Trial] = []
        self._news = threading.Condition()
        self._failure: BaseException | None = None
        self._over = False
        self._cancel: Callable[[], object] = lambda: None

    @overload
    def __getitem__(self, at: int) -> Trial: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Trial]: ...
    def __getitem__(self, at: int | slice) -> Trial | Sequence[Trial]:
        return self._trials[at]

    def __len__(self) -> int:
        return len(self._trials)

    def as_completed(self) -> Iterator[Trial]:
        """Iterate over the trials in the order in which they end.

        Raises:
            Cancelled: If the sweep was cancelled. Raised after all trials that had ended are yielded.
            PoolError: If the pool has ended. Raised after all trials that had ended are yielded.
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
        """Wait until all trials have ended. An exception during the wait, such as ctrl-c, cancels the sweep.

        Raises:
            Cancelled: If the sweep was cancelled. Trials that had ended keep their results.
            PoolError: If the pool has ended. Trials that had ended keep their results.
        """
        try:
            for _ in self.as_completed():
                pass
        except BaseException:
            self.cancel()  # stop the remaining trials; an ended sweep ignores this
            raise
        return self

    def cancel(self) -> None:
        """Stop running trials and start no further ones."""
        self._cancel()

    def __str__(self) -> str:
        rows = self._rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        return "\n".join(map(sanitize_line, lines))

    def _repr_html_(self) -> str:
        """Return the table of trials as HTML for notebooks."""
        from skyward_core.api.notebook_display import table_html

        head, *rows = self._rows()
        return table_html(f"{len(self)} trials, {len(self._ended_trials)} ended", head, rows)

    def _rows(self) -> list[list[str]]:
        names = dict.fromkeys(name for trial in self for name in trial.numbers)
        rows = [["#", *self[0].arguments, "outcome", *names, "result"]]
        for trial in self:
            values = (trial.numbers.get(name) for name in names)
            logged = ("" if number is None else f"{number:g}" for number in values)
            result = safe_repr(trial.value) if trial.ok else ""
            if (error := trial.error) is not None:
                result = f"{type(error).__name__}: {describe_exception(error)[1]}"
            texts = map(_text, trial.arguments.values())
            rows.append([str(trial.place), *texts, trial.outcome, *logged, result[:200]])
        return rows

    def __repr__(self) -> str:
        return f"<{len(self)} trials, {len(self._ended_trials)} ended>"

    # -- filling in the trials ---------------------------------------------------------------------------

    def _run_in_thread(self, work: Callable[[], None]) -> None:
        """Start a thread that runs ``work``, which records each trial when it ends."""

        def fill() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  raised by as_completed() and wait()
                self._failure = error
            with self._news:
                self._over = True
                self._news.notify_all()

        threading.Thread(target=fill, name="trials", daemon=True).start()

    def _record_trial(self, place: int, outcome: Outcome, run: str, value: Any, error: BaseException | None) -> None:
        trial = self._trials[place]
        trial.outcome, trial.seconds, trial.run = outcome.kind, outcome.seconds, run
        trial.numbers = {name: summary[0] for name, summary in (outcome.metrics or {}).items()}
        trial.value, trial.error = value, error
        with self._news:
            self._ended_trials.append(trial)
            self._news.notify_all()


def _start_trials(pending: PendingTrials, pool: Any, operator: str) -> Trials:
    if not isinstance(pool, PoolOperations):
        raise TypeError(
            f"the right operand of {operator} must be a pool (with sky.Compute(...) as pool), got {pool!r:.80}"
        )
    if pending.nodes is not None and operator != "@":
        raise UsageError(
            f"with_nodes applies to @ only: with {operator} each combination runs on one rank. "
            "Remove with_nodes, or use @."
        )
    trials = Trials(pending)
    if operator == "@":
        _run_as_gangs(trials, pending, pool)
    else:
        _run_on_ranks(trials, pending, pool)
    return trials


def _run_on_ranks(trials: Trials, pending: PendingTrials, pool: PoolOperations) -> None:
    run_id = new_run_id()
    with convert_errors("the sweep was not started: its combinations cannot be saved"):
        sweep_trial_files.save_trials(pool.pool.row.key, run_id, _make_sheet(pending))
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
    """Return a pair: the value of a call and None, or None and the exception that explains the missing value."""
    if outcome.kind == "returned":
        try:
            return run.value(outcome.index), None
        except RunError as error:  # the value cannot be loaded, for example because this machine lacks a module
            return None, error
    return None, load_exception(outcome, run.values.pop(outcome.index, None))


def _make_sheet(pending: PendingTrials) -> TrialSheet:
    names = list(pending.arguments[0])
    return TrialSheet.new(names, [[_text(each[name]) for name in names] for each in pending.arguments])


def _run_as_gangs(trials: Trials, pending: PendingTrials, pool: PoolOperations) -> None:
    arrived: SimpleQueue[tuple[int, Run] | None] = SimpleQueue()
    sweep = pool._start_gangs(pending.calls, _make_sheet(pending), pending.nodes, lambda *ended: arrived.put(ended))
    done = submit(sweep.wait())
    done.add_done_callback(lambda _: arrived.put(None))

    trials._cancel = lambda: background_loop().call_soon_threadsafe(sweep.cancel)

    def fill() -> None:
        while (ended := arrived.get()) is not None:
            place, run = ended
            if run.state not in ("done", "failed"):
                continue  # the outcome of a cancelled, lost or left run is unknown
            first = run.outcomes[0]
            try:
                trials._record_trial(place, first, run.id, run.results(), None)
            except Exception as error:  # noqa: BLE001  a run can fail with any exception
                ends = run.outcomes.values()
                cause = next((out for out in ends if out.kind not in ("returned", "collateral")), first)
                trials._record_trial(place, cause, run.id, None, error)
        done.result()
        if sweep.cancelled:
            raise Cancelled("the sweep was cancelled")

    trials._run_in_thread(fill)


def _text(value: Any) -> str:
    return value if type(value) is str else safe_repr(value)
