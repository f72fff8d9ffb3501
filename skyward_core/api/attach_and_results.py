"""``sky.attach`` to a pool that is up, and ``sky.results`` of a run that has ended."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from types import TracebackType
from typing import Any

from skyward_core.api.active_pool_and_operand_checks import push_pool, remove_pool
from skyward_core.api.pool_operations import PoolOperations, print_safely, run_in_thread, tear_down
from skyward_core.api.rank_output_printer import ScriptConsole
from skyward_core.model.deprecated_and_unknown_arguments import did_you_mean
from skyward_core.model.errors import Hint, PoolError, PoolGone, RunError
from skyward_core.model.outcomes_states_and_alerts import ErrorInfo, Outcome, RootCause
from skyward_core.model.specs import Options
from skyward_core.plugins.plugin import Plugin
from skyward_core.pool.fetch_retained_results import fetch_retained, is_fetched
from skyward_core.pool.pool import Pool, flush_all
from skyward_core.pool.runs.result_loading_and_run_errors import (
    describe_failure,
    describe_place,
    error_with_cause,
    load,
    unloadable_error,
)
from skyward_core.runtime.instance_info_and_attempt import refuse_pool_while_loading
from skyward_core.store import debug_log
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow, RunRow
from skyward_core.store.pool_folder import EXCEPTION_SUFFIX, PoolFolder
from skyward_core.store.receipts_and_bills import Receipt
from skyward_core.tasks import script_loader_child
from skyward_core.tasks.guarded_user_code import describe_exception, run_guarded
from skyward_core.transport.background_loop import call_on_loop, submit
from skyward_core.views.pool_view import PoolView, RunView


class Attached(PoolOperations):
    """Pool that another client started, as ``sky.attach`` returns it. Supports the same operators as ``Compute``.

    Leaving the block, or calling ``detach``, does not tear down the pool.

    Attributes:
        name: Name of the pool.
        plugins: Plugins that the pool's creator configured, in the order in which they are set up.
    """

    def __init__(self, pool: Pool, plugins: Sequence[Plugin]) -> None:
        super().__init__()
        self._pool = pool
        self.name = pool.name
        self.plugins = plugins
        self._stack = ExitStack()
        if pool.context.options.console and sys.stdout is not None:
            self._console = ScriptConsole(pool.news)
            self._stack.callback(self._console.close)

    def _repr_html_(self) -> str:
        """Return the pool's current state as HTML for notebooks."""
        from skyward_core.api.notebook_display import pool_html, unseen_html

        return unseen_html("pool", self.name, "left") if self._pool is None else pool_html(self._current_view())

    @property
    def view(self) -> PoolView:
        """Current state of the pool."""
        return self._current_view()

    @property
    def runs(self) -> list[RunView]:
        """All runs that the pool remembers, oldest first, from any client."""
        return sorted(self.view.runs.values(), key=lambda run: run.opened_at)

    def wait(self, run: str | None = None) -> list[Any]:
        """Wait for a run that another client dispatched.

        Args:
            run: Id of the run. None for the latest run.

        Returns:
            The values that the dispatching client would get, in the order of the ranks or of the tasks.

        Raises:
            RunError: If the run failed. The cause is the function's own exception.
            Cancelled: If the run was cancelled.
            PoolError: If the run does not exist, or if another client has fetched its results.
        """
        if run is None:
            if not self.runs:
                raise PoolError(f"pool {self.name} has no runs")
            run = self.runs[-1].id
        if run not in self.pool.context.registry.runs and is_fetched(self.pool.context.ledger, run):
            # Read the values from this machine, if a client has downloaded them without being able to load them.
            return results(run)
        return submit(self.pool.context.registry.claim(run)).result().future.result().results()

    def cancel(self, run: str, *, save: bool = False, grace: float | None = None) -> None:
        """Stop a run of any client. The pool stays up.

        Args:
            run: Id of the run.
            save: Whether the ranks get the grace period to save their work, as after a preemption notice: SIGTERM goes
                to the ranks alone, and ``sky.on_preempt`` callbacks run.
            grace: Seconds until the ranks are killed; None for the pool's grace period.

        Raises:
            PoolError: If the pool has no such run, or if ``save`` is true and the pool's agents are of a release
                without this feature.
            UsageError: If the grace period is invalid.
        """
        Options(grace=grace)
        if run not in self.view.runs:
            raise PoolError(f"Pool {self.name} has no run {run}.", hint=Hint("list-all"))
        call_on_loop(lambda: self.pool.context.registry.cancel(run, grace=grace, save=save))

    def down(self) -> Receipt:
        """Tear down the pool.

        Returns:
            The receipt: proof of what was removed, and resources that may still run.
        """
        self._close_connections()
        receipt = submit(tear_down(self.pool)).result()
        self._stack.close()
        return receipt

    def detach(self) -> None:
        """Disconnect from the pool without tearing it down."""
        self._close_connections()
        if self._pool is not None and not self._pool.context.leaving:
            submit(self._pool.detach()).result()
        self._stack.close()
        self._pool = None

    def __enter__(self) -> Attached:
        push_pool(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._forked:
            remove_pool(self)
            self.detach()

    async def __aenter__(self) -> Attached:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._forked:
            await run_in_thread(self.detach)


def attach(name: str) -> Attached:
    """Attach to a running pool by its name.

        with sky.attach("training") as compute:
            results = compute.wait()

    Args:
        name: Name of the pool.

    Raises:
        PoolGone: If the pool has ended.
        Unreachable: If none of its nodes answers.
        PoolError: If no such pool exists, or if it runs another release of this library.
        UsageError: If ``SKYWARD_LOG`` is not a log level.
    """
    if script_loader_child.loading:
        raise script_loader_child.PoolInScript
    refuse_pool_while_loading()
    if notice := debug_log.start_logging():
        print_safely(notice)

    async def work() -> tuple[Pool, bytes]:
        ledger = Ledger()
        row = ledger.find_pool(name)
        if row is None or row.ended_at is not None:
            up = [each.name for each in ledger.live_pools()]
            raise PoolError(f"no pool named {name!r} is up{did_you_mean(name, up) if up else ''}", hint=Hint("list"))
        pool = await Pool.attach_to(row, ledger)
        return pool, pool.context.setup.plugins

    pool, plugins = submit(work()).result()
    if pool.context.options.console and (news := pool.view.detail):
        print_safely(f"pool {name}: {news}")
    found, failure = run_guarded(lambda: pickle.loads(plugins)) if plugins else ((), None)
    if failure is not None:
        submit(pool.detach()).result()
        reason = ": ".join(describe_exception(failure))
        raise PoolError(f"the plugins of pool {name} cannot be loaded on this machine: {reason}") from failure
    return Attached(pool, found or ())


def results(run: str) -> list[Any]:
    """Return the values of a run that has ended, in the order of the ranks or of the tasks.

        values = sky.results("3f9c0a1b2c")

    If the pool has ended, results that are still on its hosts are fetched first. The values stay on this machine, so
    later calls return them again.

    Args:
        run: Id of the run.

    Raises:
        UsageError: If the run does not exist.
        RunError: If the run failed, or if a value cannot be loaded here. The attribute ``results`` has the other
            values.
        PoolError: If the pool is up and has the values (use ``sky.attach(pool).wait(run)``), if the client that started
            the run has already consumed the values, or if the values cannot be fetched now.
    """
    ledger = Ledger()
    submit(flush_all()).result()
    row = ledger.require_run(run)
    pool = ledger.pool(row.token)
    if pool.ended_at is None and not is_fetched(ledger, run):
        if submit(_is_available(pool, run, ledger)).result():
            raise PoolError(f"pool {pool.name} is up. Get the results with sky.attach({pool.name!r}).wait({run!r})")
        pool, row = ledger.pool(row.token), ledger.run(run) or row
    if any(run in retained.runs for retained in ledger.retained_results(row.token)):
        submit(fetch_retained(pool, ledger)).result()
        row = ledger.run(run) or row
    outcomes = {outcome.index: outcome for outcome, _ in ledger.outcomes(run)}
    files, raised = _read_result_files(pool.key, run, outcomes)
    loaded = {i: load(data) for i, data in files.items() if outcomes[i].kind == "returned"}
    returned = {i: value for i, (value, failure) in loaded.items() if failure is None}
    if row.state == "failed" and row.root_cause is not None:
        raise _build_run_error(row, row.root_cause, outcomes, files, raised, returned)
    if row.state != "done":
        raise PoolError(f"run {run} of {row.function} has no results: it ended as {row.state}")
    for i, (_, failure) in loaded.items():
        if failure is not None:
            place = f"{describe_place(row.kind, outcomes[i])} returned, but"
            about = outcomes[i].rank, place, "its result", failure, returned
            raise unloadable_error(run, row.function, outcomes, *about) from failure
    if len(returned) < row.total:
        raise PoolError(
            f"the results of run {run} are not available: its client took them, or they were removed",
            hint=Hint("results", run),
        )
    return [returned[index] for index in range(row.total)]


async def _is_available(row: PoolRow, run: str, ledger: Ledger) -> bool:
    """Check whether a pool is up and either still executes a run or still has the run's results.

    To find out, attach to the pool. This also records in the ledger that the pool or some of its runs have ended.
    """
    try:
        pool = await Pool.attach_to(row, ledger, observer=True)
    except PoolGone:
        return False
    try:
        view = pool.view.runs.get(run)
        waits = any(run in link.welcome.get("unfetched", ()) for link in pool.links if link.up)
        return waits or (view is not None and view.state == "running")
    finally:
        await pool.detach()


def _read_result_files(key: str, run: str, indices: Iterable[int]) -> tuple[dict[int, bytes], bytes]:
    """Return the files of a run on this machine: values and exceptions by call, and the exception of the root cause."""
    with closing(PoolFolder(key)) as archive:
        paths = {index: archive.results / f"{run}.{index}.pickle" for index in indices}
        raised = archive.results / f"{run}{EXCEPTION_SUFFIX}"
        files = {index: path.read_bytes() for index, path in paths.items() if path.exists()}
        return files, raised.read_bytes() if raised.exists() else b""


def _build_run_error(
    row: RunRow,
    cause: RootCause,
    outcomes: Mapping[int, Outcome],
    files: Mapping[int, bytes],
    raised: bytes,
    returned: Mapping[int, Any],
) -> RunError:
    culprit = next((out for out in outcomes.values() if RootCause.from_outcome(out) == cause), None)
    # No call has this failure if a map lost its client, or if a lost node had calls without a record.
    if culprit is None:
        error = ErrorInfo(cause.type, cause.message)
        culprit = Outcome(-1, cause.rank, -1, cause.outcome, error=error, exit_code=cause.exit_code)
        text = f"{row.function} failed: {cause.message}"
    else:
        text = describe_failure(row.function, row.kind, outcomes.values(), culprit)
    failure = RunError(text, run=row.run, function=row.function, outcomes=outcomes, root_cause=cause, results=returned)
    return error_with_cause(failure, culprit, files.get(culprit.index, raised))
