"""Session without pools and with the core's interface, driven by real events through the real views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward_core.client.launch.launch_option_declarations import LaunchRequest
from skyward_core.client.launch.launch_records_and_script_state import LaunchRecord, ShellRecord
from skyward_core.client.leftover_cleanup import LeftoverScan
from skyward_core.client.log_search import LogSearch
from skyward_core.client.replay_session import SessionBase
from skyward_core.client.run_comparison import Comparison
from skyward_core.client.run_history import PastRun, RunPreviewData, RunSearch
from skyward_core.model import outcomes_states_and_alerts as outcomes
from skyward_core.model.errors import NoTrials, PoolExistsError, UsageError
from skyward_core.model.outcomes_states_and_alerts import ErrorInfo, Outcome, RootCause, Summary
from skyward_core.model.output_files import FetchedFile, Unfetched, WrittenFile
from skyward_core.model.specs import PoolSpec
from skyward_core.model.thread_stacks import Stacks
from skyward_core.pool.dashboards import Dashboard
from skyward_core.pool.output_files import FetchResult, FileListing
from skyward_core.store.ledger import Ledger
from skyward_core.store.receipts_and_bills import Receipt
from skyward_core.tasks.pickled_calls_and_blobs import Task
from skyward_core.views import events
from skyward_core.views.pool_view import PoolView, RunView, apply
from skyward_core.views.sweep_argument_combinations import TrialSheet
from skyward_core.views.sweep_trials import TrialTableSource

if TYPE_CHECKING:
    from skyward_core.client.session_interface import Ask
    from skyward_core.model.machines_checks_and_gpu_use import Check
    from skyward_core.model.specs import Interpreter

NOW = 1_800_000_000.0


@dataclass
class FakeSession(SessionBase):
    """Session whose pools are added by tests (:meth:`pool`), or requested by the app and completed by tests."""

    views: list[PoolView] = field(default_factory=list)
    created: list[PoolSpec] = field(default_factory=list)
    launched: list[tuple[str, Task]] = field(default_factory=list)
    kept_launches: dict[str, LaunchRecord] = field(default_factory=dict)
    kept_jobs: dict[str, ShellRecord] = field(default_factory=dict)
    pool_launches: dict[str, LaunchRecord] = field(default_factory=dict)  # of the launches that made pools
    torn_down: list[str] = field(default_factory=list)
    cancelled: list[tuple[str, str]] = field(default_factory=list)
    dismissed: list[str] = field(default_factory=list)
    comparison: Comparison | None = None
    compared: list[tuple[str, str]] = field(default_factory=list)
    past: list[PastRun] = field(default_factory=list)
    past_looks: dict[str, RunPreviewData] = field(default_factory=dict)
    ledger: Ledger | None = None  # type: ignore[assignment]  # of the files that are looked through for words
    searches: list[LogSearch] = field(default_factory=list)
    looked_at: list[str] = field(default_factory=list)
    boards: dict[str, TrialTableSource] = field(default_factory=dict)
    recalled: list[str] = field(default_factory=list)
    measured: list[str] = field(default_factory=list)
    detached: bool = False
    notice: str = ""
    creating: dict[str, Future[PoolView]] = field(default_factory=dict)
    downing: dict[str, Future[Receipt]] = field(default_factory=dict)
    runs_ended: dict[str, Future[RunView]] = field(default_factory=dict)
    sweeps_over: dict[str, Future[None]] = field(default_factory=dict)
    auto: bool = True
    now: float = NOW
    stored: dict[str, Any] = field(default_factory=dict)
    kept_values: dict[str, dict[int, Path]] = field(default_factory=dict)
    ask: Ask | None = None
    written: list[WrittenFile] = field(default_factory=list)
    unfetched: dict[str, Future[Unfetched]] = field(default_factory=dict)
    kept_outputs: list[int | None] = field(default_factory=list)
    asks_about_budgets: bool = False
    raised: list[tuple[str, float]] = field(default_factory=list)
    swept: LeftoverScan = field(default_factory=LeftoverScan)
    sweeps: int = 0
    checked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    checked_for: list[str] = field(default_factory=list)
    check_ups: dict[str, Future[list[Check]]] = field(default_factory=dict)
    looks: list[Any] = field(default_factory=list)
    ended_left: list[list[str]] = field(default_factory=list)
    ending_left: Future[list[str]] = field(default_factory=Future)
    taken: Stacks = field(default_factory=lambda: Stacks(NOW, ()))
    signalled: Stacks | None = None
    taking: Future[Stacks] | None = None
    profiled: list[tuple[int, float]] = field(default_factory=list)
    profiling: Future[str] = field(default_factory=Future)
    pages: list[Dashboard] = field(default_factory=list)
    asked_stacks: list[tuple[str, Sequence[int] | None, bool]] = field(default_factory=list)

    # What the app calls

    def pools(self) -> list[PoolView]:
        return list(reversed(self.views))

    def refresh(self, *, over: bool = False, patient: bool = False) -> Future[list[PoolView]]:
        return done(self.pools())

    def start_sampling(self, pool: str) -> Future[PoolView]:
        self.measured.append(pool)
        return done(self.view(pool))

    def load_ended_pool(self, pool: str) -> Future[PoolView]:
        self.recalled.append(pool)
        return done(self.view(pool))

    def past_runs(self, search: RunSearch) -> Future[list[PastRun]]:
        return done(list(filter(search.matches, self.past)))

    def search_logs(self, runs: Sequence[PastRun], words: Sequence[str]) -> LogSearch:
        self.ledger = self.ledger or Ledger()
        self.searches.append(LogSearch(self.ledger, runs, words))
        return self.searches[-1]

    def preview_run(self, run: str) -> Future[RunPreviewData]:
        self.looked_at.append(run)
        return done(self.past_looks.get(run, RunPreviewData()))

    def failures(self) -> Future[list[PastRun]]:
        return done([run for run in self.past if run.has_failed and run.id not in self.dismissed])

    def dismiss(self, runs: Sequence[str]) -> Future[None]:
        self.dismissed += runs
        return done(None)

    def set_note(self, run: str, text: str) -> Future[None]:
        self.past = [replace(each, user_note=text) if each.run == run else each for each in self.past]
        return done(None)

    def compare(self, left: str, right: str) -> Future[Comparison]:
        self.compared.append((left, right))
        return done(self.comparison)

    def create(
        self,
        spec: PoolSpec,
        *,
        begun: Future[PoolView] | None = None,
        request: LaunchRequest | ShellRecord | None = None,
    ) -> Future[PoolView]:
        future: Future[PoolView] = Future()
        begun = begun or Future()
        if any(view.name == spec.name and view.is_live for view in self.views):
            for each in (future, begun):
                each.set_exception(PoolExistsError(f"a pool named {spec.name} is already up"))
            return future
        self.created.append(spec)
        view = self.pool(spec.name, spec.most_nodes, spec.ranks_per_node, state="starting", phase="requested")
        if isinstance(request, LaunchRequest):
            self.pool_launches[view.key] = LaunchRecord(request=request, cwd=Path.cwd())
        self.creating[spec.name] = future
        begun.set_result(view)
        if self.auto:
            self.bring_up(view)
        return future

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
        view = self.view(pool)
        self.launched.append((view.name, task))
        run = self.open_run(view, task.name, kind="single" if one else "broadcast", job=task.job)
        if request is not None and not isinstance(request, LaunchRequest):
            self.kept_jobs[run.id] = request
        return done(run)

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
        view = self.view(pool)
        self.launched += [(view.name, task) for task in tasks]
        if sheet.gang:
            first = f"{view.name}-{len(view.runs) + 1}"
            sheet = sheet.with_client(1, [first, *(f"later-{row}" for row in sheet.tasks[1:])])
            ranks = (sheet.nodes or len(view.nodes)) * view.ranks_per_node
            run = self.open_run(view, tasks[0].name, total=ranks)
        else:
            run = self.open_run(view, tasks[0].name, kind="sweep", total=len(tasks))
        self.boards[run.id] = TrialTableSource(sheet)
        return done(run)

    def wait_for_sweep(self, pool: str, run: str) -> Future[None]:
        return self.sweeps_over.setdefault(run, Future())

    def trials(self, pool: str, run: RunView) -> Future[TrialTableSource]:
        future: Future[TrialTableSource] = Future()
        if run.id in self.boards:
            future.set_result(self.boards[run.id])
        else:
            future.set_exception(NoTrials(f"run {run.id} is not a sweep over arguments"))
        return future

    def save_launch(self, pool: str, run: str, request: LaunchRequest, *, joined: bool) -> Future[None]:
        self.kept_launches[run] = LaunchRecord(request=request, cwd=Path.cwd(), joined=joined)
        return done(None)

    def load_launch(self, run: str, pool: str = "") -> Future[LaunchRecord | ShellRecord]:
        future: Future[LaunchRecord | ShellRecord] = Future()
        if not run and pool in self.pool_launches:
            future.set_result(self.pool_launches[pool])
        elif run in self.kept_jobs:
            future.set_result(self.kept_jobs[run])
        elif run in self.kept_launches:
            future.set_result(self.kept_launches[run])
        else:
            future.set_exception(UsageError(f"Run {run} has no saved launch."))
        return future

    def wait(self, pool: str, run: str) -> Future[RunView]:
        return self.runs_ended.setdefault(run, Future())

    def cancel(self, pool: str, run: str, grace: float | None = None, *, save: bool = False) -> Future[None]:
        pool = self.view(pool).name
        self.cancelled.append((pool, run))
        self.emit(self.view(pool), events.RunEnded(pool=pool, run=run, state="cancelled", at=self.now))
        return done(None)

    def stacks(
        self, pool: str, run: str = "", ranks: Sequence[int] | None = None, *, signal: bool = False
    ) -> Future[Stacks]:
        self.asked_stacks.append((run, ranks, signal))
        return self.taking or done(self.signalled if signal and self.signalled else self.taken)

    def profile(self, pool: str, rank: int, seconds: float) -> Future[str]:
        self.profiled.append((rank, seconds))
        return self.profiling

    def dashboards(self, pool: str) -> Future[list[Dashboard]]:
        return done(self.pages)

    def files(self, pool: str, run: str | None = None, *args: object, **options: object) -> Future[FileListing]:
        return done(FileListing(self.written, 0, {}, {}))

    def fetch_files(self, pool: str, run: str | None = None, *args: object) -> Future[FetchResult]:
        fetched = [FetchedFile(file, Path("/outputs") / file.path, is_new=True) for file in self.written]
        return done(FetchResult(fetched, []))

    def unfetched_files(self, pool: str) -> Future[Unfetched]:
        return self.unfetched.get(self.view(pool).name) or done(Unfetched())

    def tear_down(self, pool: str, *, keep_outputs: int | None = None, **options: object) -> Future[Receipt]:
        view = self.view(pool)
        self.kept_outputs.append(keep_outputs)
        self.torn_down.append(view.name)
        self.emit(view, events.PoolState(pool=view.name, state="stopping", at=self.now))
        future = self.downing.setdefault(view.name, Future())
        if self.auto:
            self.finish_down(pool)
        return future

    def enable_budget_prompts(self) -> None:
        self.asks_about_budgets = True

    def raise_budget(self, pool: str, dollars: float) -> Future[None]:
        view = self.view(pool)
        self.raised.append((view.name, dollars))
        self.emit(view, events.BudgetNews(pool=view.name, budget=dollars, state="within", at=self.now))
        return done(None)

    def check_provider(
        self, name: str, settings: Mapping[str, str], python: Interpreter | None = None
    ) -> Future[list[Check]]:
        self.checked.append((name, dict(settings)))
        self.checked_for.append(python.minor if python else "")
        return self.check_ups.setdefault(name, done([]))

    def scan_leftovers(
        self, asked: Mapping[str, Sequence[str]] | None = None, *, everywhere: bool = False, ledgers: Sequence[str] = ()
    ) -> Future[LeftoverScan]:
        self.sweeps += 1
        self.looks.append((asked, everywhere, tuple(ledgers)))
        return done(self.swept)

    def remove_leftovers(self, scan: LeftoverScan, *args: object) -> Future[list[str]]:
        self.ended_left.append([each.thing.id for each in scan.found])
        return self.ending_left

    def on_host_key(self, ask: Ask) -> None:
        self.ask = ask

    def detach(self) -> None:
        self.detached = True

    # What tests call

    def view(self, name: str) -> PoolView:
        """Return the pool with a key, or else the latest pool of that name."""
        return next(view for view in reversed(self.views) if name in (view.key, view.name))

    def emit(self, view: PoolView, event: events.Event) -> None:
        apply(view, event)

    def pool(
        self,
        name: str,
        nodes: int = 4,
        ranks_per_node: int = 1,
        *,
        state: outcomes.PoolStatus = "up",
        phase: outcomes.NodePhase = "ready",
        age: float = 64.0,
        price: float = 0.0,
        provider: str = "local",
    ) -> PoolView:
        view = PoolView(name, key=f"{name}.{len(self.views)}")
        spec: dict[str, Any] = {
            "provider": provider, "nodes": nodes, "worker": {"ranks_per_node": ranks_per_node}
        }  # fmt: skip
        self.views.append(view)
        self.emit(view, events.PoolOpened(pool=name, spec=spec, created_at=self.now - age, at=self.now - age))
        self.emit(view, events.PoolState(pool=name, state=state, at=self.now))
        view.price_hourly = price
        for node in range(nodes):
            at = self.now - age + 0.1 * (node + 1)
            self.emit(view, events.NodePhase(pool=name, node=node, phase=phase, at=at, address="127.0.0.1"))
        return view

    def pool_with_run(
        self, name: str, *nodes: int, function: str = "train", **options: Any
    ) -> tuple[PoolView, RunView]:
        """Add a pool, see :meth:`pool`, and open a run on all of its ranks."""
        view = self.pool(name, *nodes, **options)
        return view, self.open_run(view, function)

    def bring_up(self, view: PoolView) -> None:
        for node in view.nodes:
            self.emit(view, events.NodePhase(pool=view.name, node=node.index, phase="ready", at=self.now))
        self.emit(view, events.PoolState(pool=view.name, state="up", at=self.now))
        self.creating[view.name].set_result(view)

    def open_run(
        self,
        view: PoolView,
        function: str = "train",
        *,
        kind: outcomes.RunKind = "broadcast",
        total: int | None = None,
        job: str = "",
    ) -> RunView:
        run = f"{view.name}-{len(view.runs) + 1}"
        total = total if total is not None else 1 if kind == "single" else view.world_size
        opened = events.RunOpened(
            pool=view.name, run=run, function=function, kind=kind, total=total, at=self.now - 41, job=job
        )
        self.emit(view, opened)
        if kind == "broadcast":
            for rank in range(total):
                node = rank // view.ranks_per_node
                began = events.RankBegan(pool=view.name, run=run, index=rank, rank=rank, node=node, at=self.now - 40)
                self.emit(view, began)
        return view.runs[run]

    def end_rank(self, view: PoolView, run: RunView, rank: int, kind: str = "returned", **fields: Any) -> None:
        node = rank // view.ranks_per_node
        outcome = Outcome(rank, rank, node, kind, fields.pop("seconds", 3.25), **fields)  # type: ignore[arg-type]
        self.emit(view, events.RankEnded(pool=view.name, run=run.id, outcome=outcome, at=self.now))

    def end_run(
        self, view: PoolView, run: RunView, state: outcomes.RunStatus = "done", root: RootCause | None = None
    ) -> None:
        self.emit(view, events.RunEnded(pool=view.name, run=run.id, state=state, root_cause=root, at=self.now))
        self.runs_ended.setdefault(run.id, Future()).set_result(run)

    def print(
        self, view: PoolView, rank: int, text: str, stream: str = "out", *, at: float | None = None, run: str = ""
    ) -> None:
        """Let a rank print text in a run, by default in the newest one."""
        newest = next(reversed(view.runs), "")
        view.logs.feed(rank, stream, text.encode(), at or self.now, run or newest)

    def result_values(self, run: RunView) -> dict[int, Path]:
        if run.id not in self.kept_values:
            raise UsageError(f"Some results of run {run.id} are not on this machine")
        return self.kept_values[run.id]

    def run_logs(self, run: str) -> Any:
        """Return the log files that a test has written. Other runs are unknown."""
        if run not in self.stored:
            raise UsageError(f"no run {run!r} in the ledger")
        return self.stored[run]

    def finish_down(self, pool: str) -> None:
        view = self.view(pool)
        receipt = Receipt(view.name, len(view.nodes), tuple(range(len(view.nodes))), (), 0.42)
        self.emit(view, events.PoolEnded(pool=view.name, receipt=receipt.to_json(), at=self.now))
        self.downing[view.name].set_result(receipt)


def done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def value(data: Any) -> Summary:
    """Return the summary of JSON data."""
    return Summary(type(data).__name__, str(data), data, True, 40)


TRACEBACK = """Traceback (most recent call last):
  File "/home/me/train.py", line 31, in train
    loss = step(batch)
  File "/home/me/train.py", line 17, in step
    return total / count
ZeroDivisionError: division by zero
"""


def failed_run(session: FakeSession, view: PoolView) -> RunView:
    """Return a run in which rank 2 raised, rank 3 was killed, and the others were stopped."""
    run = session.open_run(view)
    session.end_rank(view, run, 1, "returned", summary=value({"loss": 0.21}))
    error = ErrorInfo("ZeroDivisionError", "division by zero", TRACEBACK)
    session.end_rank(view, run, 2, "raised", error=error)
    session.end_rank(view, run, 3, "exited", signal=9, error=ErrorInfo("RankExit", "killed by SIGKILL"))
    stopped = ErrorInfo("Stopped", "stopped because another rank failed")
    session.end_rank(view, run, 0, "collateral", error=stopped)
    session.end_run(view, run, "failed", RootCause(2, "raised", "ZeroDivisionError", "division by zero"))
    return run


def logged(view: PoolView, run: RunView, session: FakeSession, ranks: int = 4, steps: int = 120) -> None:
    """Return metrics of a training: a falling loss and a fluctuating learning rate."""
    for step in range(steps):
        for rank in range(ranks):
            values = {
                "step": step,
                "loss": 2.3 / (1 + step / 10) + 0.3 * rank / (step + 4) + 0.05 * ((step * 7 + rank) % 5),
                "lr": 0.01 * (1 - step / steps),
                "tokens/s": 12_000 + 400 * ((step * 3 + rank) % 7),
            }
            view.metrics.add_values(run.id, rank, session.now - 40 + step / 3, values)
