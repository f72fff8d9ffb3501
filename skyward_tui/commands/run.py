"""``skyward-tui run`` and ``attach``: see a run to its end, and leave nothing half done."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGINT
from typing import Literal, cast

from skyward_core import accelerators
from skyward_core.front.base import Front
from skyward_core.front.history import Receipt
from skyward_core.front.launch_request import pool_spec
from skyward_core.front.providers import (
    DEFAULT,
    Provider,
    Setting,
    by_name,
    make,
    own_names,
    settings_of,
)
from skyward_core.front.scripts import (
    FunctionInfo,
    Task,
    build_task,
    find_function,
    parse_arguments,
    split_target,
)
from skyward_core.front.session import Session
from skyward_core.model import exit_status
from skyward_core.model.errors import PoolExistsError, ScriptError, SkywardError, UsageError
from skyward_core.model.spec import PoolSpec, made_up_name
from skyward_core.plugins import by_name as plugin
from skyward_core.views.metrics import numbers_line
from skyward_core.views.views import PoolView, RunView

from ..packaged import PREFIX, examples, located
from ..words import count
from .console import Console
from .follow import Choice, Follower, Interrupted
from .reach import opened, up
from .report import pool_json, receipt_line, run_json, show_run


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What ``run`` was asked for; None where nothing was said."""

    target: str
    arguments: Sequence[str] = ()
    provider: str | None = None
    hosts: str | None = None
    settings: Sequence[str] = ()
    nodes: int | None = None
    ranks_per_node: int | Literal["gpu"] | None = None
    accelerator: str | None = None
    plugins: Sequence[str] = ()
    one: bool = False
    pool: str | None = None
    keep: bool = False
    detach: bool = False
    timeout: float | None = None

    @property
    def shapes_pool(self) -> bool:
        return bool(self.plugins or self.settings) or any(
            wish is not None
            for wish in (self.provider, self.hosts, self.nodes, self.ranks_per_node, self.accelerator)
        )


def run(wish: Wish, console: Console) -> int:
    """Run a script's function on a pool, and give the exit status.

    The pool is made for the run and torn down after it; one of that name that is up is used, and stays.
    """
    path, name = split_target(located(wish.target))
    function = _function(path, name)
    values = parse_arguments(function, wish.arguments)
    spec = _spec(wish, path)
    with opened(console) as session:
        found = _live(session, wish.pool)
        if found is not None and wish.shapes_pool:
            raise PoolExistsError(
                f"pool {found.name} is up already ({count(len(found.nodes), 'node')} on {found.provider}): "
                "leave out --provider, --hosts, --set, --nodes, --ranks-per-node, --accelerator and --plugin to run on "
                f"it as it is, end it (skyward-tui down {found.name}), or choose another name"
            )
        plugins = spec.plugins if found is None else [plugin(each) for each in found.spec["plugins"]]
        task = build_task(path, function.name, values, plugins=plugins, echo=True)
        if wish.timeout is not None:
            task = replace(task, timeout=wish.timeout)
        job = _Job(session, console, spec.name, ours=found is None, keep=wish.keep or wish.detach)
        with job.follower.signals():
            return job.execute(None if found else spec, task, one=wish.one, detach=wish.detach)


def _function(path: Path, name: str | None) -> FunctionInfo:
    try:
        return find_function(path, name)
    except ScriptError as error:
        if path.exists() or path.stem not in {example.stem for example in examples()}:
            raise
        raise ScriptError(f"{error}\nthere is an example of that name: run {PREFIX}{path.stem}") from error


def attach(pool: str, console: Console) -> int:
    """Follow what runs on a pool until it ends, and give its exit status; the pool stays up."""
    with opened(console) as session:
        up(session, (pool,))
        view = session.look(pool).result()
        running = [run for run in view.runs.values() if run.state == "running"]
        if not running:
            console.note(f"nothing runs on pool {pool} ({view.state}, {count(len(view.nodes), 'node')})")
            console.result(pool_json(view))
            return exit_status.OK
        job = _Job(session, console, pool, ours=False, keep=True, off_terminal="detach")
        with job.follower.signals():
            return job.resume(running[-1])


def _spec(wish: Wish, script: Path) -> PoolSpec:
    return pool_spec(
        script,
        name=wish.pool or made_up_name(str(script)),
        provider=_provider(wish),
        nodes=wish.nodes or None,
        ranks_per_node=wish.ranks_per_node or 1,
        accelerator=accelerators.resolve(wish.accelerator),
        plugins=[plugin(name) for name in wish.plugins],
    )


def _provider(wish: Wish) -> Provider:
    """What was asked for, of the settings that the provider declares."""
    texts = dict(_setting(text) for text in wish.settings)
    name = wish.provider
    if wish.hosts is not None:
        name = name or _with_option("--hosts")
        setting = next((each for each in settings_of(by_name(name)) if each.option == "--hosts"), None)
        if setting is None:
            raise UsageError(f"--hosts are reached over SSH, not by provider {name}: leave one of them out")
        texts[setting.name] = wish.hosts
    found = by_name(name or DEFAULT)
    for each in settings_of(found):
        if each.required and each.name not in texts:
            raise UsageError(f"which {each.name}? {each.help}: {_how(each)}")
    return cast(Provider, make(found, texts))


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set {text}: write a setting of the provider as KEY=VALUE")
    return name.strip(), value


def _how(setting: Setting) -> str:
    """How a setting is given."""
    example = setting.example or "VALUE"
    return f"{setting.option} {example}" if setting.option else f"--set {setting.name}={example}"


def _with_option(option: str) -> str:
    """The provider of ours that is meant where its option is given and no name."""
    for name in own_names():
        if any(each.option == option for each in settings_of(by_name(name))):
            return name
    raise UsageError(f"{option} goes with a provider: name it with --provider")


def _live(session: Front, name: str | None) -> PoolView | None:
    if name is None:
        return None
    return next((p for p in session.refresh().result() if p.name == name and p.is_live), None)


class _Job:
    """One run and its pool, from the first request to the receipt."""

    def __init__(
        self,
        session: Session,
        console: Console,
        pool: str,
        *,
        ours: bool,
        keep: bool,
        off_terminal: Choice = "cancel",
    ) -> None:
        self.session = session
        self.console = console
        self.follower = Follower(console)
        self.pool = pool
        self.ours = ours
        self.leave = keep or not ours
        self.off_terminal = off_terminal
        self.run: RunView | None = None
        self.error: SkywardError | None = None

    def execute(self, spec: PoolSpec | None, task: Task, *, one: bool, detach: bool) -> int:
        """Create the pool where a spec says how, run the task, report, and tear down where that is due."""
        up = spec is None
        try:
            if spec is not None:
                self.console.note(f"pool {spec.name}: {count(spec.nodes, 'node')} on {spec.provider.name}")
                creation = self.session.create(spec)
                self.session.subscribe(self.pool, self.follower.on_event, self.follower.on_log)
                self.follower.wait(creation)
                up = True
            else:
                self.session.subscribe(self.pool, self.follower.on_event, self.follower.on_log)
            self.run = self.follower.wait(self.session.launch(self.pool, task, one=one))
            self.console.note(f"run {self.run.id}: {task.name} on {count(self.run.total, 'rank')}")
            status = self._see_out(self.run, detach)
        except Interrupted:
            status = exit_status.INTERRUPTED
            self.leave &= up  # a pool half made is no use to keep
        except SkywardError as error:
            self.error, status = error, exit_status.of_error(error)
            self.leave &= up
            self.leave |= isinstance(error, PoolExistsError)  # that one is somebody else's
        return self._finish(status)

    def resume(self, run: RunView) -> int:
        """Follow a run that is under way."""
        self.run = run
        self.session.subscribe(self.pool, self.follower.on_event, self.follower.on_log, missed=True)
        self.console.note(f"run {run.id}: {run.function} on {count(run.total, 'rank')}")
        return self._finish(self._see_out(run))

    def _see_out(self, run: RunView, detach: bool = False) -> int:
        """Wait for the run's end, whatever signals come, and give the exit status."""
        if detach:
            # Until its ranks have begun, the run needs us.
            self.follower.wait_until(lambda: run.state != "running" or len(run.tasks) == run.total)
            self._part(run)
            return exit_status.OK
        ended = self.session.wait(self.pool, run.id)
        try:
            self._report(self.follower.wait(ended))
        except Interrupted as interruption:
            choice = self.off_terminal
            if interruption.number == SIGINT and self.console.is_terminal:
                outlives_us = self.follower.wait(self.session.outlives_us(self.pool, run.id), heed=False)
                with suppress(Interrupted):  # nobody is there any more
                    choice = self.follower.ask(f"run {run.id}", outlives_us=outlives_us)
                    self.leave = choice != "down"  # whoever answers has said what becomes of the pool
            if choice == "detach":
                ended.cancel()  # nobody waits any more
                self._part(run)
            else:
                self._cancel(run, ended)
            return exit_status.INTERRUPTED
        return status_of(run)

    def _cancel(self, run: RunView, ended: Future[RunView]) -> None:
        self.console.note(f"cancelling run {run.id}")
        try:
            self.follower.wait(self.session.cancel(self.pool, run.id))
            self._report(self.follower.wait(ended))
        except Interrupted:
            self.leave &= not self.ours  # no patience left: the teardown stops the run as well

    def _finish(self, status: int) -> int:
        """Tear down where that is due, say what is left to say, and give the exit status."""
        receipt: Receipt | None = None
        if not self.leave and any(view.name == self.pool and view.is_live for view in self.session.pools()):
            try:
                receipt = self.follower.wait(self.session.down(self.pool), heed=False)
            except SkywardError as error:
                self.error, status = error, exit_status.UNVERIFIED
        self.follower.finish()
        if receipt is not None:
            self.console.note(receipt_line(receipt))
            status = status if receipt.ok else exit_status.UNVERIFIED
        if self.error is not None:
            self.console.fail(self.error)
        if self.run is not None:
            self.console.result(run_json(self.run, receipt))
        return status

    def _report(self, run: RunView) -> None:
        self.follower.finish()
        show_run(run, self.console)
        view = next((pool for pool in self.session.pools() if pool.name == self.pool), None)
        if view is not None and (ranks := view.metrics.ranks(run.id)):
            more = f" (and {count(len(ranks) - 1, 'rank')} more)" if len(ranks) > 1 else ""
            last = numbers_line(view.metrics.latest(run.id, ranks[0]))
            self.console.note(f"last numbers of rank {ranks[0]}{more}: {last}")

    def _part(self, run: RunView) -> None:
        """Leave the pool as it is, and tell what became of the run."""
        was_over = run.state != "running"
        self.follower.wait(self.session.leave(self.pool), heed=False)
        results, end = f"skyward-tui results {run.id}", f"the pool's end: skyward-tui down {self.pool}"
        if run.state == "running":
            said = f"goes on; watch it with: skyward-tui attach {self.pool}\nits results: {results}; {end}"
        elif was_over:
            said = f"has ended ({run.state}); its results: {results}\n{end}"
        else:
            said = f"is cancelled: no node had got any of it\n{end}"
        self.console.note(f"run {run.id} {said}")


def status_of(run: RunView) -> int:
    """What a command ends with that saw this run end."""
    if run.state in ("done", "cancelled"):
        return exit_status.OK if run.state == "done" else exit_status.INTERRUPTED
    return exit_status.of_root_cause(run.root_cause)
