"""Interface of sessions: the methods that the app's screens and dialogs call. By default, each rejects the call."""
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ClassVar

from skyward_core.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from skyward_core.client.launch.launch_option_declarations import LaunchRequest
    from skyward_core.client.launch.launch_records_and_script_state import LaunchRecord as LaunchRecord
    from skyward_core.client.launch.launch_records_and_script_state import ShellRecord as ShellRecord
    from skyward_core.client.leftover_cleanup import LeftoverScan as LeftoverScan
    from skyward_core.client.log_search import LogSearch
    from skyward_core.client.run_comparison import Comparison
    from skyward_core.client.run_history import PastRun, RunPreviewData, RunSearch
    from skyward_core.model.machines_checks_and_gpu_use import Check
    from skyward_core.model.output_files import Unfetched
    from skyward_core.model.specs import Interpreter, PoolSpec
    from skyward_core.model.thread_stacks import Stacks
    from skyward_core.pool.dashboards import Dashboard as Dashboard
    from skyward_core.pool.output_files import FetchResult as FetchResult
    from skyward_core.pool.output_files import FileListing as FileListing
    from skyward_core.store.receipts_and_bills import Receipt
    from skyward_core.store.run_log_reader import RunLogs
    from skyward_core.tasks.pickled_calls_and_blobs import Task
    from skyward_core.transport.ssh.host_key_prompt import Ask as Ask
    from skyward_core.transport.ssh.known_hosts import ServerKey as ServerKey
    from skyward_core.views.pool_view import PoolView, RunView
    from skyward_core.views.sweep_argument_combinations import TrialSheet
    from skyward_core.views.sweep_trials import TrialTableSource


class SessionInterface:
    """Base class of sessions: views of pools, and methods that return futures.

    A method that a subclass does not override rejects the call: its future holds a ``UsageError`` with :attr:`REFUSAL`.
    ``pool`` is the key of a pool, ``run`` the ID of a run. Methods that take long return a future. Any thread may wait
    for the future, which also delivers errors.
    """

    REFUSAL: ClassVar[str] = "this session has no pools"

    def reject(self, *args: object, begun: Future[Any] | None = None, **options: object) -> Future[Any]:
        """Return a future that holds the error :attr:`REFUSAL`. The future ``begun``, if given, receives the same
        error.
        """
        rejected: Future[Any] = Future()
        for each in filter(None, (rejected, begun)):
            each.set_exception(UsageError(self.REFUSAL))
        return rejected

    @property
    def notice(self) -> str:
        """Warning that the user must read before the first screen, or ""."""
        return ""

    def pools(self) -> list[PoolView]:
        """Return the known pools: live ones, newest first, then ended ones."""
        return []

    def refresh(self, *, over: bool = False, patient: bool = False) -> Future[list[PoolView]]:
        """Find pools that other processes created on this machine, and connect to them as an observer.

        Args:
            over: Whether to include ended pools from the ledger.
            patient: Whether to skip pools that did not answer recently.
        """

    def load_ended_pool(self, pool: str) -> Future[PoolView]:
        """Load an ended pool with its outcomes and logs. Only one ended pool is fully loaded at a time.

        Raises:
            PoolError: If the pool does not exist.
            LedgerError, OSError: If its files cannot be read.
        """

    def past_runs(self, search: RunSearch) -> Future[list[PastRun]]:
        """Return the runs that the search selects, newest first; see ``run_history.past_runs``."""

    def search_logs(self, runs: Sequence[PastRun], words: Sequence[str]) -> LogSearch:
        """Return a search in the stored output of runs. Nothing is read before the first step of the search."""
        raise UsageError(self.REFUSAL)

    def preview_run(self, run: str) -> Future[RunPreviewData]:
        """Load the outcomes, metrics and last lines of a run; see ``run_history.load_preview``."""

    def failures(self) -> Future[list[PastRun]]:
        """Return recent undismissed failures, newest first; see ``run_history.failures``."""

    def dismiss(self, runs: Sequence[str]) -> Future[None]:
        """Dismiss failures.

        Raises:
            OSError: If the dismissal cannot be written.
        """

    def set_note(self, run: str, text: str) -> Future[None]:
        """Replace the user's note of a run; "" deletes the note.

        Raises:
            OSError: If the note cannot be written.
        """

    def compare(self, left: str, right: str) -> Future[Comparison]:
        """Load two runs for a comparison.

        Raises:
            UsageError: If a run does not exist, or both are the same.
            LedgerError: If the ledger cannot be read.
        """

    def create(
        self,
        spec: PoolSpec,
        *,
        begun: Future[PoolView] | None = None,
        request: LaunchRequest | ShellRecord | None = None,
    ) -> Future[PoolView]:
        """Start a pool; its view shows the progress.

        Args:
            begun: Receives the view as soon as the pool is registered, or the error. Callbacks of this future must not
                block.
            request: The launch that the pool is for, saved with the pool before its start.

        Raises:
            PoolExistsError: If the name is taken.
            PoolError: If the start failed; no resources of the pool remain.
            Cancelled: If :meth:`tear_down` or :meth:`detach` interrupted the start.
        """

    def launch(
        self,
        pool: str,
        task: Task,
        *,
        one: bool = False,
        is_retained: bool = False,
        request: LaunchRequest | ShellRecord | None = None,
        joined: bool = False,
    ) -> Future[RunView]:
        """Run a task on every rank. The future is done when the run is registered.

        Args:
            one: Whether to run the task on a single rank.
            is_retained: Whether nodes retain the results for a later client even after this session has received them.
            request: The launch request, or the record of the job or command that this run belongs to. Saved before the
                run starts.
            joined: Whether the pool existed before this launch.
        """

    def launch_sweep(
        self,
        pool: str,
        tasks: Sequence[Task],
        sheet: TrialSheet,
        request: LaunchRequest,
        *,
        joined: bool,
        is_retained: bool = False,
    ) -> Future[RunView]:
        """Run a task for each combination of arguments, either each on one rank, or each on a gang.

        In a sweep by gangs, each combination is a run on some of the nodes, and as many runs as fit are active at a
        time. A failure does not stop the other combinations. Sheet and request are on disk before the first task
        starts.

        Args:
            sheet: The combinations.
            request: The launch request.
            joined: Whether the pool existed before this launch.
            is_retained: Whether nodes retain the results for a later client even after this session has received them.

        Returns:
            The run; in a sweep by gangs, the first run.

        Raises:
            PoolError: If the pool does not exist, or the sheet cannot be written; nothing has started.
            UsageError: If the pool has fewer nodes than a gang needs.
        """

    def wait_for_sweep(self, pool: str, run: str) -> Future[None]:
        """Wait until all runs of a sweep of this session have ended and their logs are complete.

        Args:
            run: The run of the sweep; in a sweep by gangs, any of its runs.

        Raises:
            SkywardError: If remaining runs were not started. A cancelled sweep raises nothing.
        """

    def trials(self, pool: str, run: RunView) -> Future[TrialTableSource]:
        """Load the data for the table of a sweep.

        Raises:
            NoTrials: If the run is not a sweep.
            UsageError: If the sheet cannot be read.
            LedgerError: If the ledger cannot be read.
        """

    def save_launch(self, pool: str, run: str, request: LaunchRequest, *, joined: bool) -> Future[None]:
        """Save the request of a run, and the state of the script's repository, so that the run can be launched again.

        Args:
            joined: Whether the pool existed before this launch.

        Raises:
            OSError: If the record cannot be written.
        """

    def load_launch(self, run: str, pool: str = "") -> Future[LaunchRecord | ShellRecord]:
        """Load the request of a run, or the record of the job or command that the run belongs to.

        Args:
            run: Id of the run; "" for the launch that created a pool.
            pool: Key of that pool.

        Raises:
            UsageError: If the run or the pool has no saved launch.
            LedgerError: If the ledger cannot be read.
        """

    def wait(self, pool: str, run: str) -> Future[RunView]:
        """Wait until a run has ended and its logs are complete."""

    def cancel(self, pool: str, run: str, grace: float | None = None, *, save: bool = False) -> Future[None]:
        """Stop a run of any client. For a run of a sweep by gangs, stop the whole sweep.

        Args:
            grace: Seconds between SIGTERM and SIGKILL; by default the pool's.
            save: Whether the ranks save their work within these seconds, as after a preemption notice.
        """

    def start_sampling(self, pool: str) -> Future[PoolView]:
        """Start sampling the metrics of a pool's machines, without keeping the pool alive. The future is done when each
        node has sent a sample.
        """

    def run_logs(self, run: str) -> RunLogs:
        """Return the locations of a run's stored output.

        Raises:
            UsageError: If the ledger has no such run.
        """
        raise UsageError(self.REFUSAL)

    def result_values(self, run: RunView) -> Mapping[int, Path]:
        """Return the files with the pickled values of a run's ranks or tasks.

        Raises:
            UsageError: If some values are not stored on this machine. The message states the reason.
            LedgerError: If the ledger cannot be read.
        """
        raise UsageError(self.REFUSAL)

    def stacks(
        self, pool: str, run: str = "", ranks: Sequence[int] | None = None, *, signal: bool = False
    ) -> Future[Stacks]:
        """Collect the stacks of ranks; see ``pool.rank_inspection_and_debugger``. Does not keep the pool alive.

        Args:
            signal: Whether to send a signal to ranks whose stacks cannot be read otherwise.

        Raises:
            PoolError: If the pool does not exist, or cannot be reached.
        """

    def profile(self, pool: str, rank: int, seconds: float) -> Future[str]:
        """Sample a rank's stacks for the given duration; see ``stack_groups_and_profiles.parse_profile``.

        Does not keep the pool alive.

        Raises:
            UsageError: If the rank does not exist, or the duration is invalid.
            PoolError: If the pool does not exist, cannot be reached, or has no profiler.
        """

    def dashboards(self, pool: str) -> Future[list[Dashboard]]:
        """Find the web dashboards on a pool's head node. Their addresses are on this machine.

        Raises:
            PoolError: If the pool does not exist, or its head node cannot be reached.
        """

    def files(self, pool: str, run: str | None = None) -> Future[FileListing]:
        """List the output files in the working folder of the ranks, of one run or of all runs. Does not keep the pool
        alive.

        Raises:
            PoolError: If the pool does not exist, or cannot be reached.
        """

    def fetch_files(self, pool: str, run: str | None = None) -> Future[FetchResult]:
        """Download the output files of ranks.

        Raises:
            PoolError: If the pool does not exist, or none of its nodes answers.
        """

    def unfetched_files(self, pool: str) -> Future[Unfetched]:
        """List the files of a pool that are not downloaded yet, and whether a teardown would download or lose them.
        Does not keep the pool alive.
        """

    def tear_down(self, pool: str, *, keep_outputs: int | None = None) -> Future[Receipt]:
        """Tear a pool down and return the receipt. Unfetched results are downloaded, or retained on their hosts.

        Args:
            keep_outputs: Maximum bytes of output files to download before the teardown; None for the limit in the
                pool's options.

        Raises:
            PoolError: If the pool does not exist.
        """

    def enable_budget_prompts(self) -> None:
        """Let pools that have spent their budget wait for :meth:`raise_budget` instead of ending at once."""

    def raise_budget(self, pool: str, dollars: float) -> Future[None]:
        """Raise the budget of a pool.

        Raises:
            UsageError: If the pool has already cost more than the new budget.
            PoolError: If the pool does not exist, or cannot be reached.
        """

    def check_provider(
        self, name: str, settings: Mapping[str, str], python: Interpreter | None = None
    ) -> Future[list[Check]]:
        """Run a provider's own checks, without creating anything. If the provider does not answer within 15 s, its
        check fails.

        Args:
            settings: Settings of the provider, as texts.
            python: Interpreter of the script, whose version the machines must provide; None for that of this process.
        """

    def scan_leftovers(
        self,
        asked: Mapping[str, Sequence[str]] | None = None,
        *,
        everywhere: bool = False,
        ledgers: Sequence[str] = (),
    ) -> Future[LeftoverScan]:
        """Scan the accounts of former pools, or of the named providers, for leftovers; changes nothing.

        Raises:
            UsageError: If a provider has no account to scan, or lacks a given setting.
        """

    def remove_leftovers(self, scan: LeftoverScan) -> Future[list[str]]:
        """Remove the leftovers that a scan found, and return descriptions of the leftovers that remain."""

    def on_host_key(self, ask: Ask) -> None:
        """Set the function that accepts or rejects unknown host keys, called on the session's thread. Without one,
        unknown keys are rejected.
        """

    def detach(self) -> None:
        """Disconnect from all pools, which stay up. Afterwards, no method may be called."""


# Replace the methods that return futures, because their bodies are empty: by default they reject the call.
for _name, _method in list(vars(SessionInterface).items()):
    if _name != "reject" and str(getattr(_method, "__annotations__", {}).get("return")).startswith("Future"):
        setattr(SessionInterface, _name, SessionInterface.reject)
