"""A record of a pool in the place of a session: the same views, and no pool that could be asked or changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..model.errors import NoTrials, UsageError
from ..store.record_file import RecordFile
from .playback import Playback
from .sweeping import Sweep

if TYPE_CHECKING:
    from ..model.interpreter import Interpreter
    from ..model.machine import Check
    from ..model.spec import PoolSpec
    from ..model.stacks import Stacks
    from ..model.written_file import Unfetched
    from ..pool.dashboards import Dashboard
    from ..store.ledger_rows import Receipt
    from ..store.run_logs import RunLogs
    from ..tasks.task import Task
    from ..views.trial_sheet import TrialSheet
    from ..views.trials import TrialBoard
    from ..views.views import PoolView, RunView
    from .base import Ask, Front, Haul, Listing
    from .comparing import Comparison
    from .kept_commands import KeptShell
    from .launch_request import LaunchRequest
    from .launches import KeptLaunch
    from .line_search import LogSearch
    from .past_looks import PastLook
    from .past_runs import PastRun, RunSearch

REFUSAL = "this is a replay of a record: there is no pool behind it, and nothing is changed"


def opened(path: Path) -> RecordFile:
    """The record in a file.

    Raises:
        UsageError: it is none, was made by a newer release, or is larger than any that we make.
        OSError: it cannot be read.
    """
    return RecordFile.read(path)


class Replay:
    """All that the app asks of a session, answered of a record.

    Args:
        playback: of the record; it begins to play now.

    Raises (through the futures of all that needs a pool):
        UsageError: this is a replay.
    """

    def __init__(self, playback: Playback) -> None:
        self._playback = playback
        playback.begin()

    @property
    def notice(self) -> str:
        """What a person should know of the record, or ""."""
        cut = "the record was cut off: what came after is not in it" if self._playback.cut else ""
        return "; ".join(filter(None, (self._playback.note, cut)))

    def pools(self) -> list[PoolView]:
        return [self._playback.view]

    def refresh(self, *, over: bool = False, patient: bool = False) -> Future[list[PoolView]]:
        return _done(self.pools())

    def recall(self, pool: str) -> Future[PoolView]:
        return _done(self._playback.view)

    def measure(self, pool: str) -> Future[PoolView]:
        return _done(self._playback.view)

    def sweep(
        self,
        asked: Mapping[str, Sequence[str]] | None = None,
        *,
        everywhere: bool = False,
        ledgers: Sequence[str] = (),
    ) -> Future[Sweep]:
        return _done(Sweep())

    def files(self, pool: str, run: str | None = None) -> Future[Listing]:
        """None: a record has no files of ranks."""
        from ..pool.outputs.listing import Listing  # late: the first picture needs no pool

        return _done(Listing([], 0, {}, {}))

    def ask_about_budgets(self) -> None:
        """Nothing is spent."""

    def on_host_key(self, ask: Ask) -> None:
        """Nobody is asked."""

    def detach(self) -> None:
        self._playback.close()

    # What needs a pool

    def run_logs(self, run: str) -> RunLogs:
        _refuse()

    def result_values(self, run: RunView) -> dict[int, Path]:
        _refuse()

    def create(self, spec: PoolSpec, *, begun: Future[PoolView] | None = None) -> Future[PoolView]:
        if begun is not None:
            begun.set_exception(UsageError(REFUSAL))
        return _refused()

    def past_runs(self, search: RunSearch) -> Future[list[PastRun]]:
        return _done([])

    def search_logs(self, runs: Sequence[PastRun], words: Sequence[str]) -> LogSearch:
        _refuse()

    def look_at_run(self, run: str) -> Future[PastLook]:
        _refuse()

    def failures(self) -> Future[list[PastRun]]:
        return _done([])

    def dismiss(self, runs: Sequence[str]) -> Future[None]:
        return _refused()

    def compare(self, left: str, right: str) -> Future[Comparison]:
        return _refused()

    def launch(
        self,
        pool: str,
        task: Task,
        *,
        one: bool = False,
        stays: bool = False,
        request: LaunchRequest | KeptShell | None = None,
        joined: bool = False,
    ) -> Future[RunView]:
        return _refused()

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
        return _refused()

    def sweep_over(self, pool: str, run: str) -> Future[None]:
        return _refused()

    def trials(self, pool: str, run: RunView) -> Future[TrialBoard]:
        """Of the record's own sheets; each run that it holds is in the view."""
        from ..views.trials import TrialBoard  # late: few records have one

        sheets = self._playback.view.sheets
        found = next((each for name, each in sheets.items() if run.id in (name, *each.runs.values())), None)
        if found is None:
            return _failed(NoTrials(f"the record says of no sweep that run {run.id} is one, or of one"))
        return _done(TrialBoard(found))

    def check_provider(
        self, name: str, settings: Mapping[str, str], python: Interpreter | None = None
    ) -> Future[list[Check]]:
        return _refused()

    def keep_launch(self, pool: str, run: str, request: LaunchRequest, *, joined: bool) -> Future[None]:
        return _refused()

    def kept_launch(self, run: str) -> Future[KeptLaunch | KeptShell]:
        return _refused()

    def wait(self, pool: str, run: str) -> Future[RunView]:
        return _refused()

    def cancel(self, pool: str, run: str) -> Future[None]:
        return _refused()

    def stacks(
        self, pool: str, run: str = "", ranks: Sequence[int] | None = None, *, signal: bool = False
    ) -> Future[Stacks]:
        return _refused()

    def profile(self, pool: str, rank: int, seconds: float) -> Future[str]:
        return _refused()

    def dashboards(self, pool: str) -> Future[list[Dashboard]]:
        return _refused()

    def fetch_files(self, pool: str, run: str | None = None) -> Future[Haul]:
        return _refused()

    def unfetched_files(self, pool: str) -> Future[Unfetched]:
        return _refused()

    def down(self, pool: str, *, keep_outputs: int | None = None) -> Future[Receipt]:
        return _refused()

    def raise_budget(self, pool: str, dollars: float) -> Future[None]:
        return _refused()

    def end_left(self, sweep: Sweep) -> Future[list[str]]:
        return _refused()


if TYPE_CHECKING:
    _is_a_front: type[Front] = Replay


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def _refuse() -> NoReturn:
    raise UsageError(REFUSAL)


def _refused() -> Future[Any]:
    return _failed(UsageError(REFUSAL))


def _failed(error: UsageError) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(error)
    return future
