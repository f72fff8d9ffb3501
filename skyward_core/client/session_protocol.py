"""What screens ask of pools, whoever answers: the session of this machine, or the one that tests put in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from skyward_core.client.launch.job_records import ShellRecord as ShellRecord
    from skyward_core.client.launch.launch_records import LaunchRecord as LaunchRecord
    from skyward_core.client.launch.launch_request import LaunchRequest
    from skyward_core.client.leftover_cleanup import LeftoverScan as LeftoverScan
    from skyward_core.client.run_comparison import Comparison
    from skyward_core.client.run_history import LogSearch, PastRun, RunPreviewData, RunSearch
    from skyward_core.model.machines import Check
    from skyward_core.model.outcomes import Unfetched
    from skyward_core.model.script_interpreter import Interpreter
    from skyward_core.model.specs import PoolSpec
    from skyward_core.model.stack_values import Stacks
    from skyward_core.pool.dashboards import Dashboard as Dashboard
    from skyward_core.pool.output_files import FetchResult as FetchResult
    from skyward_core.pool.output_files import FileListing as FileListing
    from skyward_core.store.ledger_rows import Receipt
    from skyward_core.store.run_logs import RunLogs
    from skyward_core.tasks.pickled_call import Task
    from skyward_core.transport.ssh.host_key_prompt import Ask as Ask
    from skyward_core.transport.ssh.known_hosts import ServerKey as ServerKey
    from skyward_core.views.pool_view import PoolView, RunView, TrialSheet
    from skyward_core.views.sweep_trials import TrialTableSource


class SessionProtocol(Protocol):
    """All that the app's screens and dialogs need of the library; ``session.Session`` tells what each raises.

    ``pool`` is a pool's key, ``run`` a run's id. Whatever takes long is a future, which any thread may wait for.
    """

    @property
    def notice(self) -> str:
        """What a person should know before anything else, or ""."""

    def pools(self) -> list[PoolView]:
        """The pools known so far: those that are not over, newest first, then the others."""

    def refresh(self, *, over: bool = False, patient: bool = False) -> Future[list[PoolView]]:
        """Look for pools that others made; with ``over`` also for those that have ended."""

    def load_ended_pool(self, pool: str) -> Future[PoolView]:
        """Have a pool that has ended, whole: with its outcomes and logs."""

    def past_runs(self, search: RunSearch) -> Future[list[PastRun]]:
        """Every run that is remembered and wanted, newest first."""

    def search_logs(self, runs: Sequence[PastRun], words: Sequence[str]) -> LogSearch:
        """Look through what runs printed, as far as it is kept here; nothing is read before its first step."""

    def preview_run(self, run: str) -> Future[RunPreviewData]:
        """One of them at a glance, by its id."""

    def failures(self) -> Future[list[PastRun]]:
        """Failures of late that nobody has dismissed, newest first."""

    def dismiss(self, runs: Sequence[str]) -> Future[None]:
        """Tell of some failures no more."""

    def compare(self, left: str, right: str) -> Future[Comparison]:
        """Two runs side by side, by their ids."""

    def create(self, spec: PoolSpec, *, begun: Future[PoolView] | None = None) -> Future[PoolView]:
        """Bring a pool up; ``begun`` is done as soon as there is one to look at, the future when it is up."""

    def launch(
        self,
        pool: str,
        task: Task,
        *,
        one: bool = False,
        stays: bool = False,
        request: LaunchRequest | ShellRecord | None = None,
        joined: bool = False,
    ) -> Future[RunView]:
        """Run a task on every rank, or with ``one`` on a single node; done when the run is opened.

        Args:
            stays: whether its results are for whoever comes later, though they are told here.
            request: what asked for it, or the job that it is a step of, which is kept before anything begins; see
                :meth:`keep_launch`.
            joined: whether the pool was up before.
        """

    def launch_sweep(
        self,
        pool: str,
        tasks: Sequence[Task],
        sheet: TrialSheet,
        request: LaunchRequest,
        *,
        joined: bool,
        stays: bool = False,
    ) -> Future[RunView]:
        """Run a task for each combination of arguments, each on one rank, or by gangs, each as a run of its own; done
        when the run, or the first of them, is opened."""

    def wait_for_sweep(self, pool: str, run: str) -> Future[None]:
        """Done when a sweep that this session began is over, all of its runs have ended and their logs are here; raises
        why not all of them were begun.

        Args:
            run: the run that it is, or by gangs any of them.
        """

    def trials(self, pool: str, run: RunView) -> Future[TrialTableSource]:
        """What the table of such a run is made of."""

    def save_launch(self, pool: str, run: str, request: LaunchRequest, *, joined: bool) -> Future[None]:
        """Keep all of what a run was launched with, to be launched again: the state of its script's repository, too.
        ``joined`` says that its pool was up before."""

    def load_launch(self, run: str) -> Future[LaunchRecord | ShellRecord]:
        """What a run was launched with, or the job that it was a step of."""

    def wait(self, pool: str, run: str) -> Future[RunView]:
        """Done when a run has ended, and its logs are here."""

    def cancel(self, pool: str, run: str) -> Future[None]:
        """Stop a run, whoever dispatched it."""

    def start_sampling(self, pool: str) -> Future[PoolView]:
        """Have a pool's machines measured from now on, into its view; done when each node has told of itself."""

    def run_logs(self, run: str) -> RunLogs:
        """Where what a run's ranks printed is kept on this machine, as of now."""

    def result_values(self, run: RunView) -> Mapping[int, Path]:
        """The files that have the values of a run's ranks, or tasks, as they pickled them, as far as these are here."""

    def stacks(
        self, pool: str, run: str = "", ranks: Sequence[int] | None = None, *, signal: bool = False
    ) -> Future[Stacks]:
        """Where the ranks are; with ``signal`` those that cannot be read are sent one."""

    def profile(self, pool: str, rank: int, seconds: float) -> Future[str]:
        """Where a rank spends its time, looked at for so long; see ``views.stack_groups``."""

    def dashboards(self, pool: str) -> Future[list[Dashboard]]:
        """Web pages of its head that answer, at addresses of this machine."""

    def files(self, pool: str, run: str | None = None) -> Future[FileListing]:
        """The files that ranks wrote on their nodes, of a run or of all of a pool's time."""

    def fetch_files(self, pool: str, run: str | None = None) -> Future[FetchResult]:
        """Bring them here."""

    def unfetched_files(self, pool: str) -> Future[Unfetched]:
        """Those that nobody has fetched, and what a teardown would make of them."""

    def tear_down(self, pool: str, *, keep_outputs: int | None = None) -> Future[Receipt]:
        """Tear a pool down, with proof; bring so many bytes of files here first, else what its options say."""

    def enable_budget_prompts(self) -> None:
        """Have pools wait for a word when they have cost what they may; before, they end at once."""

    def raise_budget(self, pool: str, dollars: float) -> Future[None]:
        """Let a pool cost more."""

    def check_provider(
        self, name: str, settings: Mapping[str, str], python: Interpreter | None = None
    ) -> Future[list[Check]]:
        """What a provider's own check-up says, with settings as texts; done within seconds, whoever does not answer.

        Args:
            python: what a script is loaded with, which its machines need then; None for what runs this.
        """

    def scan_leftovers(
        self,
        asked: Mapping[str, Sequence[str]] | None = None,
        *,
        everywhere: bool = False,
        ledgers: Sequence[str] = (),
    ) -> Future[LeftoverScan]:
        """Look through the accounts in which pools have been, or through those of providers by name, for what is left
        there; changes nothing."""

    def remove_leftovers(self, sweep: LeftoverScan) -> Future[list[str]]:
        """End what was found that nobody needs; gives what remains, in words."""

    def on_host_key(self, ask: Ask) -> None:
        """Have ``ask`` judge, on the pools' thread, keys of hosts that no file knows; before, none is believed."""

    def detach(self) -> None:
        """Leave all pools as they are; nothing can be asked any more."""
