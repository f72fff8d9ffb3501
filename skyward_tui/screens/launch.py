"""Launch screen: validation of the form, plan, presets, and the launch itself."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from shutil import rmtree
from typing import TYPE_CHECKING, NamedTuple

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Container, Horizontal
from textual.content import Content
from textual.suggester import SuggestFromList
from textual.widget import Widget
from textual.widgets import Button, Input, Select, Static

from skyward_core.client.launch import plugin_and_provider_catalog as catalog
from skyward_core.model.errors import Cancelled, PoolError, PoolGone, SkywardError, error_hint, error_message
from skyward_core.model.machines_checks_and_gpu_use import Check
from skyward_core.model.provider_capability_protocols import Asks
from skyward_core.util.safe_file_access import current_folder, expand_user, is_dir, resolve_path
from skyward_core.views.pool_view import PoolView, RunView
from skyward_tui.dialogs.basic_dialogs import AskScreen, ChoiceScreen
from skyward_tui.dialogs.pickers import AcceleratorsScreen, FilesScreen, PresetsScreen, PythonsScreen
from skyward_tui.launch_form.form import (
    FieldError,
    Form,
    command_line,
    fitting_arguments,
    form_from_preset,
    form_from_request,
    functions_of,
    is_job,
    is_sweep,
    package_choices,
    path_of,
    plan_launch,
    provider_choices,
    provider_settings,
    python_script,
    save_preset,
    setting_fields,
)
from skyward_tui.launch_form.plan_computation_and_text import Planner, PlanResult, ScriptWait, compute_plan, load_tasks
from skyward_tui.launch_form.recent_launches import add_recent, recent_forms
from skyward_tui.screens.base_screen import BaseScreen
from skyward_tui.screens.launch_argument_fields import ArgumentFields
from skyward_tui.screens.launch_field_groups import (
    POOL_SETTINGS,
    WHOLE,
    CallFields,
    CheckLines,
    FoldedFields,
    LaunchFields,
    OptionFields,
    ProviderField,
    display_path,
    setting_fields_by_id,
    worst_state,
)
from skyward_tui.screens.launch_sidebar import LaunchSidebar, PlanPanel
from skyward_tui.shutdown_and_daemon_threads import run_in_daemon_thread
from skyward_tui.text.error_hint_text import format_error
from skyward_tui.text.hardware_and_offer_cells import ANY
from skyward_tui.text.queue_trial_and_comparison_rows import sweep_outcome
from skyward_tui.text.teardown_and_leftovers import receipt_line
from skyward_tui.text.text_width_tables_and_ascii import one_line
from skyward_tui.ui.actions import bindings, first_key, with_keys
from skyward_tui.ui.session_futures import flash_errors, wait_shielded
from skyward_tui.ui.themes import read_style_sheet
from skyward_tui.widgets.form_fields import Choice, ScriptSuggester, Toggles, update_label
from skyward_tui.widgets.screen_frame_and_replay_line import Breadcrumbs, Panel

if TYPE_CHECKING:
    from textual.timer import Timer

    from skyward_core.client.launch.launch_option_declarations import LaunchRequest
    from skyward_core.client.launch.launch_plan import LaunchPlan
    from skyward_core.client.launch.launch_records_and_script_state import JobRecord
    from skyward_core.client.launch.presets import Preset
    from skyward_core.client.session import Session
    from skyward_core.model.offers_and_rental_plans import OfferList
    from skyward_tui.app import SkywardApp
    from skyward_tui.launch_form.job_file_plan import JobPlan


_ROWS, _ROWS_SHORT = 4, 1  # maximum rows for the problems that a provider check has found, on tall and on short screens
_OWN_PYTHON = "{}.{}".format(*sys.version_info)

# Name and settings of a provider, and the Python version of the script; "" if the app has the same version.
CheckKey = tuple[str, tuple[tuple[str, str], ...], str]


class ProviderChecks:
    """Checks of the selected provider. They run once per combination of settings, and not while the user is typing a
    setting. A changed setting discards the shown result.

    Args:
        screen: Screen of the form.
    """

    def __init__(self, screen: BaseScreen[None]) -> None:
        self._screen = screen
        self._key: CheckKey | None = None  # provider, settings and Python version of the current check
        self._results: dict[CheckKey, list[Check]] = {}
        # Python that loads the script; None if its version is that of the app's Python
        self._python: catalog.Interpreter | None = None
        # texts of the form's fields for script and Python, for which ``_python`` was determined
        self._script_and_python = ("", "")
        self._is_delayed = False  # whether the current check waits until the user has stopped typing

    def set_interpreter(self, form: Form, python: catalog.Interpreter) -> None:
        """Set the Python that loads the form's script. Machines need the same Python version."""
        self._script_and_python = form.script, form.python
        self._python = python if python.minor not in ("", _OWN_PYTHON) else None
        self.check(form)

    def check(self, form: Form) -> None:
        """Check the provider of a form, unless the result is already known. While a setting has the focus, the check
        waits until the user has stopped typing.
        """
        if self._script_and_python != (form.script, form.python):
            self._python = None
        session = self._screen.app.session
        own = setting_fields(form.provider)
        if session is None or self._screen.app.read_only:
            return
        focused = self._screen.focused
        is_typing = isinstance(focused, Input) and focused.id in own
        given = dict(provider_settings(form))
        lacks = [each.name for each in own.values() if each.required and not given.get(each.name)]
        minor = self._python.minor if self._python else ""
        key = None if form.pool or lacks else (form.provider, tuple(sorted(given.items())), minor)
        if key == self._key and (is_typing or not self._is_delayed):
            return
        self.discard(form.provider)
        self._key = key
        if key is None or key in self._results:
            self._show(form.provider, key)
        else:
            self._is_delayed = is_typing
            run_check = partial(self._run_check, key, self._python)
            self._screen.run_worker(run_check, "check", "check", exclusive=True)  # type: ignore[arg-type]

    def discard(self, provider: str) -> None:
        """Discard the shown result of the check, because a setting has changed."""
        self._key, self._is_delayed = None, False
        self._screen.workers.cancel_group(self._screen, "check")
        self._show(provider, None)

    async def _run_check(self, key: CheckKey, python: catalog.Interpreter | None) -> None:
        name, given, _ = key
        if self._is_delayed:
            await asyncio.sleep(CHECK_PAUSE)
            self._is_delayed = False
        self._screen.query_one(ProviderField).mark(name, "asked")
        try:
            session = self._screen.app.required_session
            self._results[key] = await wait_shielded(session.check_provider(name, dict(given), python))
        except (SkywardError, OSError) as error:
            self._results[key] = [Check(name, "fail", error_message(error), error_hint(error))]
        if self._screen.has_widgets and key == self._key:
            self._show(name, key)

    def _show(self, provider: str, key: CheckKey | None) -> None:
        lines = [] if key is None else self._results[key]
        self._screen.query_one(ProviderField).mark(provider, worst_state(lines) if lines else None)
        self._screen.query_one(CheckLines).show(lines, _ROWS_SHORT if self._screen.has_class("-short") else _ROWS)


async def _load_presets(app: SkywardApp) -> list[Preset] | None:
    """Return all presets. If they cannot be loaded, show the error and return None."""
    from skyward_core.client.launch.presets import presets

    with flash_errors(app):
        return await run_in_daemon_thread(presets)
    return None


class LaunchPool(NamedTuple):
    """Pool of a launch: its session, its key, and the future of its start (None for an existing pool)."""

    session: Session
    key: str
    created: Future[PoolView] | None = None


def _launch_record(plan: LaunchPlan | JobPlan) -> LaunchRequest | JobRecord:
    """Return the request or the job of a plan, which is saved with the pool and its runs for ``rerun``."""
    from skyward_core.client.launch.launch_plan import LaunchPlan
    from skyward_core.client.launch.launch_records_and_script_state import JobRecord

    if isinstance(plan, LaunchPlan):
        return plan.request
    return JobRecord.from_job(plan.job, plan.request, down=plan.spec is not None and not plan.keep)


async def create_pool(app: SkywardApp, plan: LaunchPlan | JobPlan) -> LaunchPool:
    """Create the pool of a plan, or return the existing pool. Does not wait until the pool has started.

    Raises:
        SkywardError: If the pool is rejected at once, for example because its name is taken.
    """
    session = app.required_session
    if isinstance(plan.pool, PoolView):
        if not any(pool.key == plan.pool.key and pool.is_live for pool in session.pools()):
            raise PoolError(f"pool {plan.pool.name} is no longer running")
        return LaunchPool(session, plan.pool.key)
    if isinstance(plan.pool.provider, Asks):
        app.host_keys.attach(session)
    begun: Future[PoolView] = Future()
    created = session.create(plan.pool, begun=begun, request=_launch_record(plan))
    return LaunchPool(session, (await wait_shielded(begun)).key, created)


# Function that launches on a pool, waits for the end if the pool is temporary, and returns an error text or "".
Work = Callable[["LaunchPool"], Awaitable[str]]


async def run_on_pool(
    app: SkywardApp, plan: LaunchPlan | JobPlan, begun: LaunchPool, work: Work, folder: Path | None
) -> None:
    """Wait until a pool has started, do the work on it, and tear it down if it is temporary.

    Args:
        folder: Temporary folder of a job, removed afterwards.
    """
    try:
        if begun.created is not None and not await _wait_until_up(app, plan, begun.created):
            return
        problem = await work(begun)
    except SkywardError as error:
        problem = one_line(format_error(error))
    finally:
        if folder is not None:
            rmtree(folder, ignore_errors=True)
    await _tear_down(app, plan, begun, problem)


async def launch_on_live_pool(app: SkywardApp, form: Form) -> RunView:
    """Launch a form again on its live pool, and return the run.

    Raises:
        FieldError, SkywardError: If the form is invalid, the script cannot be loaded, or the pool refuses the launch.
    """
    pools = app.pools()
    plan = await run_in_daemon_thread(lambda: plan_launch(form, pools, launching=True))
    tasks = await load_tasks(plan, ScriptWait(f"loading {plan.script.name}"))
    return await _start_run(app, plan, tasks, LaunchPool(app.required_session, form.pool))


async def _start_run(app: SkywardApp, plan: LaunchPlan, tasks: Sequence[catalog.Task], pool: LaunchPool) -> RunView:
    """Launch a run; for several tasks, launch a sweep."""
    session, request, joined = pool.session, plan.request, plan.spec is None
    if plan.sheet is not None:
        future = session.launch_sweep(pool.key, tasks, plan.sheet, request, joined=joined)
    else:
        future = session.launch(pool.key, tasks[0], one=request.one, request=request, joined=joined)
    run = await wait_shielded(future)
    app.show_launched(pool.key, run.id)
    try:
        await wait_shielded(session.save_launch(pool.key, run.id, request, joined=joined))
    except OSError as error:
        app.flash(f"cannot save the launch of run {run.id}: {error}", "error")
    return run


async def launch_run(app: SkywardApp, plan: LaunchPlan, tasks: Sequence[catalog.Task], pool: LaunchPool) -> str:
    """Launch a run. If its pool is temporary, wait for its end."""
    run, session = await _start_run(app, plan, tasks, pool), pool.session
    if plan.sheet is not None and plan.sheet.gang:
        await _wait_for_gangs(app, session, pool.key, run)
    elif plan.spec is not None and not plan.keep:
        await wait_shielded(session.wait(pool.key, run.id))
    return ""


async def _wait_for_gangs(app: SkywardApp, session: Session, pool: str, run: RunView) -> None:
    """Wait for all runs of a sweep by gangs, and show a message about the outcome.

    Raises:
        SkywardError: If the remaining runs cannot start.
    """
    from skyward_core.views.rank_metrics_and_progress import MetricStore

    try:
        await wait_shielded(session.wait_for_sweep(pool, run.id))
    except PoolGone:  # the sweep's pool has ended, so no message about the sweep is shown
        return
    board = await wait_shielded(session.trials(pool, run))
    view = next((each for each in session.pools() if each.key == pool), None)
    table = board.table(run.id, run.tasks, MetricStore(), {} if view is None else view.runs)
    problem = sweep_outcome(table, run.id)
    success = f"all {len(table.rows):,} combinations of {run.function} have results"
    app.flash(problem or success, "error" if problem else "done")


async def _tear_down(app: SkywardApp, plan: LaunchPlan | JobPlan, begun: LaunchPool, problem: str) -> None:
    """Tear down a temporary pool, and show a message about the outcome of the work and the teardown."""
    session, name = begun.session, plan.pool.name
    is_temporary = plan.spec is not None and not plan.keep and begun.key not in app.rerunning_pools
    if problem:
        app.flash(f"{name}: {problem}", "error")
        is_temporary = is_temporary and any(pool.key == begun.key and pool.is_live for pool in session.pools())
    if not is_temporary:
        return
    try:
        receipt = await wait_shielded(session.tear_down(begun.key))
    except SkywardError as error:
        app.flash(f"{name}: {one_line(format_error(error))}", "error")
        return
    outcome = f"{problem}; " if problem else "run ended, "
    app.flash(f"{outcome}{name} torn down: {receipt_line(receipt)}", "done" if receipt.ok and not problem else "error")


async def launch_job(app: SkywardApp, plan: JobPlan, steps: Sequence[catalog.Task], pool: LaunchPool) -> str:
    """Run the steps of a job one after the other, each as a separate run, until one fails. Return an error text, or
    ""."""
    session, job = pool.session, token_hex(5)
    record = _launch_record(plan)
    nodes: tuple[int, ...] = ()
    for number, step in enumerate(steps, 1):
        task = replace(step, job=job, more=number < len(steps), before=tuple(steps[: number - 1]))
        if nodes and isinstance(task.nodes, int):
            task = replace(task, nodes=nodes)
        run = await wait_shielded(session.launch(pool.key, task, request=record))
        app.show_launched(pool.key, run.id)
        await wait_shielded(session.wait(pool.key, run.id))
        nodes = run.nodes
        if run.state != "done":
            rest = ", ".join(each.name for each in steps[number:])
            return f"{task.name} {run.state}" + (f"; skipped: {rest}" if rest else "")
    outcome = "is done" if plan.job.run.strip() else "has no run command: nothing was run"
    app.flash(f"job {plan.job.name or plan.job.path.name} {outcome}", "done")
    return ""


async def _wait_until_up(app: SkywardApp, plan: LaunchPlan | JobPlan, created: Future[PoolView]) -> bool:
    try:
        await wait_shielded(created)
    except Cancelled as error:
        app.flash(format_error(error))
        return False
    except SkywardError as error:
        choices = [("close", "Close", False), ("edit", "Change the launch", False)]
        title = f"Pool {plan.pool.name} did not start"
        if await app.push_screen_wait(ChoiceScreen(title, format_error(error), choices, escape="close")) == "edit":
            app.show_launch()  # opens the form with the values of the failed launch
        return False
    app.unlaunched = None
    return True


# Actions that read or change the form. During a launch, these actions are disabled.
_EDITS = ("launch", "files", "pythons", "accelerators", "presets")
TYPING = 0.3  # seconds without a key press after which the form is validated and the provider is queried for offers
CHECK_PAUSE = 1.0 - TYPING  # seconds after TYPING without a key press until the provider's settings are checked
MAX_MESSAGE_CHARS = 120  # maximum characters of an error below the form; the panel with the plan shows longer errors


class LaunchScreen(BaseScreen[None]):
    """Screen with the launch form. Nothing is created before the user confirms.

    Args:
        pool: Key of a live pool to launch on; "" for a new pool.
        form: Initial values; by default, those of the last launch if its pool did not start.
    """

    SCOPE = "launch"
    BINDINGS = bindings("launch")
    DEFAULT_CSS = read_style_sheet(__file__)

    def __init__(self, pool: str = "", form: Form | None = None) -> None:
        super().__init__()
        self._pool = pool
        self._first = form
        self._carried = Form()  # form that the fields were last filled from; supplies the values that have no field
        self._recent: list[Form] = []
        # arguments that this screen has filled in; if the field still contains them, the user has not edited them
        self._filled = ""
        self._functions: list[catalog.FunctionInfo] = []
        self._readable = False  # whether the script of the form can be read
        # values of the form before the user selected an existing pool, to restore them for a new pool
        self._own_settings: Form | None = None
        self._function = ""  # function that was chosen last; remembered while the script cannot be read
        self._plugins_touched = False
        self._typing: Timer | None = None  # timer that validates the form as soon as the user has stopped typing
        # by field ID: number of characters of the text field at its last change
        self._lengths: dict[str | None, int] = {}
        self._is_script_edited = False  # whether the user has edited the script's name since the last validation
        self._sweeps = False
        self._swept = ""  # arguments for which this screen has already switched the sweep option on or off by itself
        self._planner = Planner()
        self._checks = ProviderChecks(self)
        self._plan: PlanPanel | None = None  # stored, because each tick needs the panel with the plan
        self._sidebar = LaunchSidebar(self, self._fill)
        self._planned_form: Form | None = None  # values of the form for which the plan is shown
        self._shows_plan = False  # whether the form's plan is shown, and no error or empty plan
        self._wait: ScriptWait | None = None  # text about the current step of planning or launching
        self._busy = False
        self._creating = False
        self._preset = ""  # name of the preset that the form was filled from; "" for none
        self._remarks: Sequence[str] = ()  # notes about values of the preset that are outdated

    def body(self) -> ComposeResult:
        with Container(id="sides"):
            with Panel(id="form") as form:
                form.border_title = "launch"
                live = [(f"{pool.name} ({pool.world_size:,} ranks, up)", pool.key) for pool in self._live_pools()]
                yield LaunchFields(live, self._pool, self.app.keys)
                with Horizontal(id="last"):
                    yield Button("Launch", id="launch", variant="primary", compact=True)
                    yield Static(id="message", markup=False)
                yield self._sidebar.code
            self._plan = PlanPanel(first_key("launch.view", self.app.keys))
            yield self._plan

    def on_mount(self) -> None:
        self._recent = recent_forms()
        scripts = [display_path(Path(form.script)) for form in self._recent]
        self.query_one("#script", Input).suggester = ScriptSuggester(scripts)
        if (form := self._first or (None if self._pool else self.app.unlaunched)) is not None:
            self._fill(form)
        if self._first is None:
            self.query_one("#script").focus()
        else:
            arguments = self.query_one("#arguments", Input)
            arguments.select_on_focus = False
            arguments.focus()
            self.call_after_refresh(arguments.action_end)
        self._review()
        self.tick(self.app.clock())

    @property
    def can_leave(self) -> bool:
        return not self._creating

    def time_token(self, now: float) -> object:
        return self._wait and str(self._wait)

    def tick(self, now: float) -> None:
        self.query_one(Breadcrumbs).update_trail(["pools", "launch"])
        if self._wait is not None and (text := str(self._wait)):
            self._set_message(text)
            if self._planned_form != (form := self.form()):
                self._show_plan([], form)  # removes the previous plan, which no longer fits the form
        super().tick(now)

    def on_descendant_blur(self) -> None:
        self.call_after_refresh(self._check_provider)

    def _check_provider(self) -> None:
        if self.has_widgets and not self._busy:
            self._checks.check(self.form())

    def _live_pools(self) -> list[PoolView]:
        return [pool for pool in self.app.pools() if pool.is_live and pool.state == "up"]

    def on_resize(self) -> None:
        self.call_after_refresh(self._review)

    # Values and script of the form

    @property
    def _fields(self) -> LaunchFields:
        return self.query_one(LaunchFields)

    def form(self) -> Form:
        """Return the form with the texts that the fields contain."""
        return self._fields.form(self._carried)

    def _fill(self, form: Form) -> None:
        """Fill the fields of the screen from a form."""
        self._carried = form
        self._fields.fill(form)
        self._filled, self._plugins_touched = form.arguments, True
        self._read_script(WHOLE if form.whole else form.function, form.packages)
        # If the plugins equal those detected in the script, the user has not chosen them, so they change with the
        # script.
        self._plugins_touched = set(form.plugins) != set(self._detect_plugins())
        self._review()

    def _follow_script(self) -> None:
        """Read the edited script. Keep the arguments that the script accepts. If none remain, fill in the arguments of
        the script's last launch.
        """
        was_whole = self._function == WHOLE
        self._read_script()
        form = self.form()
        script = form.script.strip()
        same = [each for each in self._recent if script in (each.script, display_path(Path(each.script)))]
        same = [each for each in same if each.whole == form.whole]
        field = self.query_one("#arguments", Input)
        # the user has not changed the arguments that this screen has filled in
        if field.value == self._filled and (self._readable or is_job(script)):
            called = self._called(form)
            is_open = called is not None and any(param.kind == "var_keyword" for param in called.params)
            fitting = fitting_arguments(form.arguments, self._arguments(form), is_open=is_open)
            if form.whole:
                fitting = field.value if was_whole else ""
            self._filled = field.value = fitting or (same[0].arguments if same else "")
            if self._filled and not fitting:
                self.flash(with_keys("arguments of your last launch; {launch.clear}: clear", self.app.keys))
        self.query_one("#arguments", Input).suggester = SuggestFromList([each.arguments for each in same])

    def _called(self, form: Form) -> catalog.FunctionInfo | None:
        """Return the function of the script that the form selects; None if there is none."""
        return next((info for info in self._functions if info.name == form.function), None)

    def _arguments(self, form: Form) -> Sequence[catalog.ArgumentField]:
        """Return the fields of the selected function's arguments, or of a job file's variables."""
        if is_job(form.script):
            from skyward_tui.launch_form.job_file_plan import variables

            return variables(form.script)
        return [] if (called := self._called(form)) is None else catalog.argument_fields(called)

    def _read_script(self, function: str = "", packages: str = "") -> None:
        """List the functions of the script and the package files of its project."""
        self._is_script_edited = False
        select = self.query_one("#function", Choice)
        self._function = function = function or self._fields.text("function") or self._function
        try:
            self._functions, self._readable = functions_of(self._fields.text("script")), True
        except FieldError:
            self._functions, self._readable = [], False
        listed = [(info.name, info.name) for info in self._functions]
        if self._readable:
            listed.append(("the whole script", WHOLE))
        # posts no message about a change, because the caller validates the form
        select.replace_options(listed, function)
        if listed:
            self._choose_plugins()
        self._list_packages(packages)

    def _list_packages(self, chosen: str) -> None:
        select = self.query_one("#packages", Choice)
        listed = package_choices(path_of(self._fields.text("script")) if self._readable else None, chosen)
        # posts no message about a change, because the caller validates the form
        select.replace_options(listed, chosen or str(select.value))

    @on(Select.Changed, "#pool")
    @on(Select.Changed, "#function")
    def _choose_plugins(self) -> None:
        """Check the boxes of the plugins that the script needs, unless the user has changed the boxes."""
        if not self._plugins_touched:
            self.query_one("#plugins", Toggles).chosen = frozenset(self._detect_plugins())

    def _detect_plugins(self) -> list[str]:
        """Return the available plugins that the script needs. An existing pool has its own plugins."""
        from skyward_core.client.launch.launch_plan import plugin_names

        form = self.form()
        used = [pool for pool in self._live_pools() if pool.key == form.pool]
        names: list[str] = []
        if used:
            names = plugin_names(used[0])
        elif self._readable and not is_job(form.script):
            names = catalog.find_gang_frameworks(path_of(form.script), whole=form.whole)
        return [name for name, _ in self.query_one("#plugins", Toggles).options if name in names]

    @on(Toggles.Changed, "#plugins")
    def _mark_plugins_touched(self) -> None:
        self._plugins_touched = True

    @on(Select.Changed, "#pool")
    @work(group="pool", exclusive=True)
    async def _show_pool_settings(self) -> None:
        """Show the selected pool's settings in the disabled fields. For a new pool, restore the user's settings."""
        from skyward_core.client.launch.launch_records_and_script_state import LaunchRecord

        pool, source = self.form().pool, None
        if not pool:
            source, self._own_settings = self._own_settings, None
        else:
            # if the settings of the pool cannot be loaded, the fields stay unchanged
            with suppress(SkywardError, OSError):
                record = await wait_shielded(self.app.required_session.load_launch("", pool))
                if isinstance(record, LaunchRecord):
                    source = form_from_request(record.absolute_request())
                    self._own_settings = self._own_settings or self.form()
        if source is not None and self.has_widgets:
            self._fields.fill(replace(self.form(), **{name: getattr(source, name) for name in POOL_SETTINGS}))
            self._list_packages(source.packages)
            self._review()

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        """Validate the form, at once after a paste, otherwise once the user has stopped typing.

        The delay is necessary because a validation takes longer than the interval between two keys.
        """
        id, length = event.input.id, len(event.value)
        self._is_script_edited |= id == "script"
        if id in setting_fields_by_id():
            self._checks.discard(self._fields.text("provider"))
        is_key = abs(length - self._lengths.get(id, 0)) <= 1
        self._lengths[id] = length
        if is_key:
            self._review_later()
        else:
            self._review()

    @on(OptionFields.Changed)
    def _review_later(self) -> None:
        self._stop_typing()
        self._typing = self.set_timer(TYPING, self._review)

    def _stop_typing(self) -> None:
        if self._typing is not None:
            self._typing.stop()
            self._typing = None

    @on(Select.Changed)
    @on(Toggles.Changed)
    def _review(self) -> None:
        """Validate the form, and update fields, checks, sidebar and plan."""
        self._stop_typing()
        if self._busy:
            return
        if self._is_script_edited:
            self._follow_script()
        form = self.form()
        self._fields.lock_fields(form, job=is_job(form.script), detected=not self._plugins_touched)
        called, arguments = self._called(form), self._arguments(form)
        if called is not None and self._detect_sweep(arguments, form):
            form = self.form()
        self.query_one("#gangs").display = form.sweep
        script = path_of(form.script) if self._readable else Path()
        self.query_one(CallFields).show(form, arguments, called, script)
        self._checks.check(form)
        self._sidebar.update(form, script, called)
        self._wait = self._wait or ScriptWait("finding the script's Python")
        self._update_plan(form)

    def _detect_sweep(self, arguments: Sequence[catalog.ArgumentField], form: Form) -> bool:
        """Switch on the sweep option if a value is a list, unless the user has switched the option off. Return whether
        this call switched the option on.
        """
        if self._sweeps and not form.sweep:
            self._swept = form.arguments
        self._sweeps = form.sweep
        is_known = form.sweep or form.arguments == self._swept
        if is_known or not is_sweep(arguments, form.arguments):
            return False
        self._swept, self._sweeps = form.arguments, True
        options = self.query_one("#options", Toggles)
        options.chosen = (options.chosen | {"sweep"}) - {"one"}
        return True

    @work(exclusive=True, group="plan")
    async def _update_plan(self, form: Form) -> None:
        """Compute and show the plan. A newer edit cancels this worker."""
        choice = provider_choices().get(form.provider)
        if choice is not None and choice.chooses and not form.pool:
            await asyncio.sleep(TYPING)  # if the user types on, this worker is cancelled before it queries the provider
        result = await self._compute_plan(form)
        if self.has_widgets:
            self._wait = None
            self._show_result(result)

    async def _compute_plan(self, form: Form, *, launching: bool = False) -> PlanResult:
        pools = self.app.pools()
        shown = launching and self._shows_plan and form == self._planned_form
        return await self._planner.run(form, lambda: compute_plan(form, pools, launching=launching, shown=shown))

    def _show_result(self, result: PlanResult) -> None:
        form, error = result.form, result.error
        self.query_one("#launch").set_class(error is not None, "-invalid")
        self._sidebar.fit_code()
        self._mark_field(error if form.script.strip() else None)
        if result.plan is not None:
            self._checks.set_interpreter(form, result.plan.interpreter)
        if error is None:
            self._set_message("")
            self._show_plan(result.rows, form, script=result.script)
        else:
            self._set_message(one_line(str(error)), error=bool(form.script.strip()))
            self._show_plan([], form, str(error) if "\n" in str(error) or len(str(error)) > MAX_MESSAGE_CHARS else "")

    def _show_plan(self, rows: Sequence[tuple[str, str]], form: Form, reason: str = "", script: str = "") -> None:
        self._planned_form, self._shows_plan = form, bool(rows)
        remarks = [("preset", remark) for remark in self._remarks]
        self.query_one(PlanPanel).show([*remarks, *rows], trouble=reason, command=command_line(form), script=script)

    def action_scroll_plan(self, pages: int) -> None:
        self.query_one(PlanPanel).page(pages)

    def action_turn_plan(self) -> None:
        self.query_one(PlanPanel).show_next()

    def _mark_field(self, wrong: FieldError | None) -> None:
        """Highlight the invalid field that the error message is about."""
        for field in self.query("#form .-wrong"):
            field.remove_class("-wrong")
        if wrong is not None:
            field = self._invalid_field(wrong)
            for each in (field, *field.ancestors):
                if each is field or isinstance(each, FoldedFields):
                    each.add_class("-wrong")

    def _invalid_field(self, wrong: FieldError) -> Widget:
        """Return the invalid field. For an argument without its own field, return the field of the arguments' line."""
        own = self.query_one("#argument-fields", ArgumentFields).field_of(wrong.argument)
        return self.query_one(f"#{wrong.field}") if own is None else own

    def _focus_field(self, field: Widget) -> None:
        """Focus a field, and expand the sections that contain it."""
        for section in field.ancestors:
            if isinstance(section, FoldedFields):
                section.collapsed = False
        self.call_after_refresh(field.focus)

    def _set_message(self, text: str, *, error: bool = False) -> None:
        message = self.query_one("#message", Static)
        message.set_class(error, "-error")
        text = with_keys(text, self.app.keys)
        update_label(message, Content(f"✗ {text}" if error else text))

    # Actions of the launch form

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "back":
            return not self._creating
        if action == "turn_plan":
            return self._plan is None or not self._plan.fits
        return not (action in _EDITS and self._busy)

    @on(Button.Pressed)
    def action_launch(self) -> None:
        if not self._busy:
            if self._typing is not None:
                self._review()
            self.workers.cancel_group(self, "plan")
            self._launch(self.form())

    @work(exclusive=True, group="launch")
    async def _launch(self, form: Form) -> None:
        """Compute the plan of the current form, load the script, then create the pool.

        Because of this order, a script that fails to load costs no machine. The form is disabled in the meantime.
        """
        before, focus = self._wait, self.focused
        self._set_busy(before or ScriptWait("finding the script's Python"))
        try:
            result = await self._compute_plan(form, launching=True)
            if result.rows:
                self._show_plan(result.rows, form, script=result.script)
            if result.job is not None:
                return await self._start_job(form, result.job)
            if result.plan is not None:
                return await self._start(form, result.plan)
        except (SkywardError, OSError) as error:
            if self.has_widgets:
                self._set_busy(None, focus)
                self._set_message(one_line(format_error(error)), error=True)
                self._show_plan([], form, format_error(error))
            return
        if self.has_widgets and result.error is not None:
            self._set_busy(None)
            self._show_result(result)
            self._set_message(one_line(str(result.error)), error=True)
            self._focus_field(self._invalid_field(result.error))

    async def _start(self, form: Form, plan: LaunchPlan) -> None:
        self._wait = ScriptWait(f"loading {plan.script.name}")
        tasks = await load_tasks(plan, self._wait)
        await self._begin(form, plan, lambda pool: launch_run(self.app, plan, tasks, pool))

    async def _start_job(self, form: Form, shown: JobPlan) -> None:
        """Ask for missing secrets, then launch a job file."""
        from skyward_core.client.launch.job_and_shell_launch import TASKS_FOLDER, job_steps, make_process_folder
        from skyward_tui.dialogs.host_key_and_secret_variables import SecretsScreen
        from skyward_tui.launch_form.job_file_plan import job_plan

        values: dict[str, str] | None = {}
        if shown.lacks:
            values = await self.app.push_screen_wait(SecretsScreen(shown.lacks))
            if values is None:
                return self._set_busy(None)
        self._wait = ScriptWait(f"reading {shown.job.path.name}")
        # The folder is in the state folder. If this process is killed, a later process removes the folder.
        pools, folder = self.app.pools(), make_process_folder(TASKS_FOLDER)
        # A generated name of a pool is random, so create the pool with the name in the plan that the user has seen.
        named = form if shown.spec is None else replace(form, name=shown.spec.name)
        try:
            plan = await run_in_daemon_thread(lambda: job_plan(named, pools, values, clone=True))
            live = plan.pool if isinstance(plan.pool, PoolView) else None
            steps = await run_in_daemon_thread(lambda: job_steps(plan.job, live, folder))
            await self._begin(form, plan, lambda pool: launch_job(self.app, plan, steps, pool), folder)
        except BaseException as error:
            rmtree(folder, ignore_errors=True)
            if not isinstance(error, FieldError):
                raise
            self._set_busy(None)
            self._set_message(one_line(str(error)), error=True)

    async def _begin(self, form: Form, plan: LaunchPlan | JobPlan, work: Work, folder: Path | None = None) -> None:
        """Create the pool, save the launch as a recent one, start :func:`run_on_pool`, and show the pool."""
        app = self.app
        self._wait = ScriptWait(f"creating pool {plan.pool.name}" if plan.spec else "launching")
        # while this is true, the user cannot leave the screen, because the app does not know the new pool yet
        self._creating = True
        try:
            with app.host_keys.paused():
                begun = await create_pool(app, plan)
        finally:
            self._creating = False
        app.unlaunched = None if form.pool else form
        try:
            add_recent(form)
        except OSError as error:
            app.flash(f"cannot save this launch in the recent ones: {error}", "error")
        app.run_worker(run_on_pool(app, plan, begun, work, folder), name="launch", group=begun.key)
        app.show_pool(begun.key)

    def _set_busy(self, wait: ScriptWait | None, focus: Widget | None = None) -> None:
        """Disable the form during a launch, or enable it afterwards."""
        self._wait, self._busy = wait, wait is not None
        self.query_one("#form").disabled = self._busy
        if focus is not None:
            focus.focus()

    def action_clear_arguments(self) -> None:
        field = self.query_one("#arguments", Input)
        field.value = ""
        field.focus()

    def action_files(self) -> None:

        def picked(path: str | None) -> None:
            if files.again is not None:
                self._fill(files.again)
            elif path is not None:
                self.query_one("#script", Input).value = display_path(Path(path))
            if path is not None:
                self.query_one("#arguments").focus()

        at = expand_user(self._fields.text("script")).parent
        files = FilesScreen(resolve_path(at) if is_dir(at) else current_folder(), self._recent)
        self.app.push_screen(files, picked)

    def action_pythons(self) -> None:

        def picked(path: str | None) -> None:
            if path is not None:
                field = self.query_one("#python", Input)
                field.value = path and display_path(Path(path))
                field.focus()

        if self._typing is not None:
            self._review()
        script = path_of(self._fields.text("script")) if self._readable else None
        self.app.push_screen(PythonsScreen(script), picked)

    def action_accelerators(self) -> None:

        field = self.query_one("#accelerator", Input)

        def picked(name: str | None) -> None:
            if name is not None:
                _, colon, count = field.value.partition(":")
                field.value = name if ":" in name else name + colon + count
                field.focus()

        choice = provider_choices().get(self.form().provider)
        if not field.disabled:
            self.app.push_screen(AcceleratorsScreen(_load_offers if choice and choice.chooses else None), picked)

    def action_copy_command(self) -> None:
        self.workers.cancel_group(self, "copy")
        self.app.copy(command_line(self.form()), "the command line")

    @work(exclusive=True, group="copy")
    async def action_copy_script(self) -> None:
        form, pools = self.form(), self.app.pools()
        self.app.copy(await self._planner.run(form, lambda: python_script(form, pools)), "the Python script")

    @work(exclusive=True, group="presets")
    async def action_presets(self) -> None:
        if (presets := await _load_presets(self.app)) is None:
            return
        screen = PresetsScreen(presets)
        name = await self.app.push_screen_wait(screen)
        if name is not None and name in screen.presets:
            self._fill_from_preset(*form_from_preset(screen.presets[name]), name)

    @work(exclusive=True, group="presets")
    async def action_save_preset(self) -> None:
        form, presets = self.form(), await _load_presets(self.app)
        if presets is None:
            return
        prompt = AskScreen("Name of the preset, saved in skyward.toml of this folder", self._preset)
        name = await self.app.push_screen_wait(prompt)
        if name is not None and name != self._preset and name in {each.name for each in presets}:
            choices = [("keep", "Cancel", False), ("replace", "Replace", True)]
            question = ChoiceScreen("Save as preset", f"Preset {name} already exists.", choices, "keep")
            if await self.app.push_screen_wait(question) != "replace":
                return
        if name is not None:
            with flash_errors(self.app, "cannot save the preset: "):
                file = await run_in_daemon_thread(lambda: save_preset(name, form))
                self.app.flash(f"saved preset {name} in {file.name}", "done")

    def _fill_from_preset(self, form: Form, remarks: Sequence[str], preset: str) -> None:
        self._preset, self._remarks = preset, remarks
        with self.prevent(Select.Changed):
            self.query_one("#pool", Select).value = ""
        self._fill(form)
        if remarks:
            self.flash(f"preset {preset}: {remarks[0]}", "error")
        else:
            self.flash(f"filled from preset {preset}", "done")

    def action_back(self) -> None:
        self.leave()


def _load_offers() -> OfferList:
    """Return all offers with accelerators."""
    from skyward_core.client.offers_and_block_purchases import list_offers

    return list_offers(ANY)
