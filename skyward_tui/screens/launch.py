"""The launch form: what to run on the left, what will happen on the right."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Container, Horizontal
from textual.content import Content
from textual.suggester import SuggestFromList
from textual.widget import Widget
from textual.widgets import Button, Input, Select, Static

from skyward_core.front.user_files import expanded, is_dir, resolved
from skyward_core.model.errors import SkywardError
from skyward_core.views.views import PoolView

from .. import ends
from ..actions import bindings, first_key, with_keys
from ..current_folder import current_folder
from ..hints import words_of
from ..launch_form import (
    FieldError,
    Form,
    command_line,
    functions_of,
    is_job,
    path_of,
    provider_choices,
    python_script,
    request_of,
)
from ..launch_packages import choices_for
from ..offered_rows import ANY
from ..planning import Planned, Planner, Wait, loaded, planned
from ..recent import recent, remember
from ..several_values import mean_a_sweep
from ..styles import beside
from ..widgets.argument_fields import ArgumentFields
from ..widgets.call_fields import CallFields
from ..widgets.chrome import Crumbs, Panel
from ..widgets.form_fields import Choice
from ..widgets.image_fields import ImageFields
from ..widgets.plan_panel import PlanPanel
from ..widgets.plugin_fields import PluginFields
from ..widgets.saying import say
from ..widgets.toggles import Toggles
from ..words import one_line
from . import launch_presets
from .base import BaseScreen
from .launch_beside import LaunchBeside
from .launch_checks import ProviderChecks
from .launch_fields import WHOLE, LaunchFields, near
from .launching import BegunPool, create, follow, follow_job

if TYPE_CHECKING:
    from skyward_core.front.launch_plan import LaunchPlan
    from skyward_core.front.scripts import FunctionInfo, Task
    from skyward_core.model.offer import OfferList

    from ..job_form import JobPlan

_EDITS = (
    "launch",
    "files",
    "pythons",
    "accelerators",
    "presets",
)  # what changes the form, which a launch holds still
TYPING = 0.3  # seconds after the last letter in which a provider is not asked yet
ROOM = 120  # characters that fit beside the button, however narrow the form


class LaunchScreen(BaseScreen[None]):
    """Nothing is created before ``ctrl+r``.

    Args:
        pool: key of a live pool to launch on; empty for a new one.
        form: what the fields hold at first; without it, what was entered for a pool that did not start.
    """

    SCOPE = "launch"
    BINDINGS = bindings("launch")
    DEFAULT_CSS = beside(__file__)

    def __init__(self, pool: str = "", form: Form | None = None) -> None:
        super().__init__()
        self._pool = pool
        self._first = form
        self._carried = Form()  # what of it no field shows
        self._recent: list[Form] = []
        self._filled = ""  # the arguments that we put there ourselves
        self._functions: list[FunctionInfo] = []
        self._readable = False  # whether there is a script
        self._plugins_touched = False
        self._sweeps = False
        self._swept = ""  # arguments of which the person, or we, have said whether they are those of a sweep
        self._planner = Planner()
        self._checks = ProviderChecks(self)
        self._beside = LaunchBeside(self, self._fill)
        self._shown: Form | None = None  # what the plan is about
        self._wait: Wait | None = None  # for the plan, or for what a launch is at
        self._busy = False
        self._creating = False
        self._preset = ""  # its name, where the form was filled from one
        self._remarks: Sequence[str] = ()  # what of that is not there any more

    def body(self) -> ComposeResult:
        with Container(id="sides"):
            with Panel(id="form") as form:
                form.border_title = "launch"
                live = [(f"{pool.name} ({pool.world_size:,} ranks, up)", pool.key) for pool in self._live()]
                yield LaunchFields(live, self._pool, self.app.keys)
                with Horizontal(id="last"):
                    yield Button("Launch", id="launch", variant="primary", compact=True)
                    yield Static(id="message", markup=False)
                yield self._beside.code
            yield PlanPanel(first_key("launch.view", self.app.keys))

    def on_mount(self) -> None:
        self._recent = recent()
        self._suggest("script", [near(Path(form.script)) for form in self._recent])
        if (form := self._first or (None if self._pool else self.app.unlaunched)) is not None:
            self._fill(form)
        self.query_one("#script").focus()
        self._review()
        self.pulse(self.app.clock())

    @property
    def may_leave(self) -> bool:
        return not self._creating

    def shown_time(self, now: float) -> object:
        """Who waits is told for how long, and of what was heard."""
        return self._wait and str(self._wait)

    def pulse(self, now: float) -> None:
        self.query_one(Crumbs).show(["pools", "launch"])
        if self._wait is not None and (text := str(self._wait)):
            self._say(text)
            if self._shown != (form := self.form()):
                self._show_plan([], form)  # what stands there is about another
        super().pulse(now)

    def on_descendant_blur(self) -> None:
        self.call_after_refresh(self._left_field)

    def _left_field(self) -> None:
        if self.is_attached and not self._busy:
            self._checks.look(self.form())

    def _live(self) -> list[PoolView]:
        return [pool for pool in self.app.pools() if pool.is_live and pool.state == "up"]

    def on_resize(self) -> None:
        self.call_after_refresh(self._review)

    # Reading the form

    @property
    def _fields(self) -> LaunchFields:
        return self.query_one(LaunchFields)

    def form(self) -> Form:
        """What the fields say."""
        return self._fields.form(self._carried)

    def _fill(self, form: Form) -> None:
        """Have the fields say what a launch said."""
        self._carried = form
        self._fields.put(form)
        self._filled, self._plugins_touched = form.arguments, True
        self._script_changed(WHOLE if form.whole else form.function, form.packages)

    @on(Input.Changed, "#script")
    def _script_edited(self) -> None:
        self._script_changed()
        typed = self._fields.text("script").strip()
        same = [form for form in self._recent if typed in (form.script, near(Path(form.script)))]
        same = [form for form in same if form.whole == self.form().whole]
        field = self.query_one("#arguments", Input)
        if field.value == self._filled:  # nobody has typed there since
            self._filled = field.value = same[0].arguments if same else ""
        self._suggest("arguments", [form.arguments for form in same])

    def _suggest(self, field: str, texts: list[str]) -> None:
        self.query_one(f"#{field}", Input).suggester = SuggestFromList(texts) if texts else None

    def _script_changed(self, function: str = "", packages: str = "") -> None:
        """List the functions of the script, and what its project says of packages, as soon as there is one."""
        select = self.query_one("#function", Select)
        try:
            self._functions, self._readable = functions_of(self._fields.text("script")), True
        except FieldError:
            self._functions, self._readable = [], False
        listed = [(info.name, info.name) for info in self._functions]
        if self._readable:
            listed.append(("the whole script", WHOLE))
        select.set_options(listed)
        if listed:
            select.value = function if function in [name for _, name in listed] else listed[0][1]
            self._choose_plugins()
        self._list_packages(packages)
        self._review()

    def _list_packages(self, chosen: str) -> None:
        select = self.query_one("#packages", Select)
        listed = choices_for(path_of(self._fields.text("script")) if self._readable else None, chosen)
        before = str(select.value)
        with self.prevent(Select.Changed):  # whoever calls looks at the whole form
            select.set_options(listed)
            select.value = chosen or (before if before in [choice for _, choice in listed] else "")
            select.mutate_reactive(Choice.value)  # type: ignore[misc]  # what is called otherwise now is shown so

    def _choose_plugins(self) -> None:
        """Switch on what the script plainly needs, until the person has a say; a pool has those it was made with."""
        from skyward_core.front.launch_plan import plugins_of
        from skyward_core.front.scripts import gang_frameworks_of

        toggles = self.query_one("#plugins", Toggles)
        if not self._plugins_touched:
            form = self.form()
            used = [pool for pool in self._live() if pool.key == form.pool]
            if used:
                wanted = plugins_of(used[0])
            elif self._readable:
                wanted = gang_frameworks_of(path_of(self._fields.text("script")), whole=form.whole)
            else:
                wanted = []
            toggles.chosen = {name for name, _ in toggles.options if name in wanted}
            toggles.refresh()

    @on(Toggles.Changed, "#plugins")
    def _plugins_changed(self) -> None:
        self._plugins_touched = True

    @on(Select.Changed, "#pool")
    @on(Select.Changed, "#function")
    def _what_it_needs_changed(self) -> None:
        self._choose_plugins()

    @on(Input.Changed)
    @on(Select.Changed)
    @on(Toggles.Changed)
    @on(PluginFields.ParametersChanged)
    @on(ImageFields.ImageChanged)
    def _review(self) -> None:
        """Say what the form as it stands would do, or what is wrong with it."""
        if self._busy:
            return
        form = self.form()
        job = is_job(form.script)
        self._fields.hold_still(form, job=job)
        called = next((info for info in self._functions if info.name == form.function), None)
        if called is not None and self._begins_sweep(called, form):
            form = self.form()
        self.query_one("#gangs").display = form.sweep
        script = path_of(form.script) if self._readable else Path()
        if job:
            from ..job_form import variables

            self.query_one(CallFields).show_variables(variables(form.script), path_of(form.script))
        else:
            self.query_one(CallFields).show(called, script, whole=form.whole, sweep=form.sweep)
        self._checks.look(form)
        self._beside.look(form, script, called)
        self._wait = self._wait or Wait("looking for the Python of the script")
        self._plan(form)

    def _begins_sweep(self, called: FunctionInfo, form: Form) -> bool:
        """Several values where one makes sense are a sweep, unless the person has said that they are none."""
        from skyward_core.front.scripts import argument_fields

        if self._sweeps and not form.sweep:
            self._swept = form.arguments
        self._sweeps = form.sweep
        is_known = form.sweep or form.arguments == self._swept
        if is_known or not mean_a_sweep(argument_fields(called), form.arguments):
            return False
        self._swept, self._sweeps = form.arguments, True
        options = self.query_one("#options", Toggles)
        options.chosen = (options.chosen | {"sweep"}) - {"one"}
        options.refresh()
        return True

    @work(exclusive=True, group="plan")
    async def _plan(self, form: Form) -> None:
        """The newest wins: an edit cancels this one, and what it would have shown."""
        choice = provider_choices().get(form.provider)
        if choice is not None and choice.chooses and not form.pool:
            await asyncio.sleep(TYPING)  # whoever types on cancels this, and the provider is not asked
        found = await self._work_out(form)
        if self.display:  # it loses its widgets one by one as it is left
            self._wait = None
            self._show(found)

    async def _work_out(self, form: Form, *, launching: bool = False) -> Planned:
        pools = self.app.pools()
        return await self._planner.work(form, lambda: planned(form, pools, launching=launching))

    def _show(self, found: Planned) -> None:
        form, error = found.form, found.error
        self._beside.share()
        self._mark(error if form.script.strip() else None)
        if found.plan is not None:
            self._checks.learn(form, found.plan.interpreter)
        if error is None:
            self._say("")
            self._show_plan(found.told, form, script=found.script)
        else:
            self._say(one_line(str(error)), error=bool(form.script.strip()))
            self._show_plan([], form, str(error) if "\n" in str(error) or len(str(error)) > ROOM else "")

    def _show_plan(
        self, told: Sequence[tuple[str, str]], form: Form, why: str = "", script: str = ""
    ) -> None:
        self._shown = form
        remarks = [("preset", remark) for remark in self._remarks]
        plan = self.query_one(PlanPanel)
        plan.show([*remarks, *told], trouble=why, command=command_line(form), script=script)

    def action_scroll_plan(self, pages: int) -> None:
        self.query_one(PlanPanel).page(pages)

    def action_turn_plan(self) -> None:
        self.query_one(PlanPanel).turn()

    def _mark(self, wrong: FieldError | None) -> None:
        """Have one field stand out: the message beside the button is about that."""
        for field in self.query("#form .-wrong"):
            field.remove_class("-wrong")
        if wrong is not None:
            self._field_of(wrong).add_class("-wrong")

    def _field_of(self, wrong: FieldError) -> Widget:
        """The field that is wrong; of arguments the one's own, where it has one."""
        own = self.query_one("#argument-fields", ArgumentFields).field_of(wrong.argument)
        return self.query_one(f"#{wrong.field}") if own is None else own

    def _say(self, text: str, *, error: bool = False) -> None:
        message = self.query_one("#message", Static)
        message.set_class(error, "-error")
        text = with_keys(text, self.app.keys)
        say(message, Content(f"✗ {text}" if error else text))

    # Acting

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "back":
            return not self._creating
        if action == "turn_plan":
            return not self.query(PlanPanel) or not self.query_one(PlanPanel).fits
        return not (action in _EDITS and self._busy)

    def on_button_pressed(self) -> None:
        self.action_launch()

    def action_launch(self) -> None:
        if not self._busy:
            self.workers.cancel_group(self, "plan")
            self._launch(self.form())

    @work(exclusive=True, group="launch")
    async def _launch(self, form: Form) -> None:
        """Work the form out as it is shown now, then build the task, so that a script that does not load costs no
        machine; then the pool. Nobody can change the form meanwhile."""
        before, focus = self._wait, self.focused
        self._at_work(before or Wait("looking for the Python of the script"))
        try:
            found = await self._work_out(form, launching=True)
            if found.job is not None:
                self._show_plan(found.told, form, script=found.script)
                await self._begin_job(form, found.job)
                return
            if found.plan is not None:
                self._show_plan(found.told, form, script=found.script)
                await self._begin(form, found.plan)
                return
        except (SkywardError, OSError) as error:
            if self.display:
                self._at_work(None, focus)
                self._say(one_line(words_of(error)), error=True)
                self._show_plan([], form, words_of(error))
            return
        if self.display and found.error is not None:
            self._at_work(None)
            self._show(found)
            self._say(one_line(str(found.error)), error=True)
            self._field_of(found.error).focus()

    async def _begin(self, form: Form, plan: LaunchPlan) -> None:
        self._wait = Wait(f"loading {plan.script.name}")
        tasks = await loaded(plan, self._wait)
        self._wait = Wait(f"creating pool {plan.pool.name}" if plan.spec else "launching")
        self._creating = True  # from here on there is something to tear down
        try:
            with self.app.host_keys.held():
                self._leave_for(form, plan, tasks, await create(self.app, plan))
        finally:
            self._creating = False

    async def _begin_job(self, form: Form, shown: JobPlan) -> None:
        """Ask for the secrets that nobody has given; then the same with a job file."""
        from skyward_core.front import passing_folders

        from ..dialogs.secrets import SecretsScreen
        from ..job_form import job_plan, job_steps

        values: dict[str, str] | None = {}
        if shown.lacks:
            values = await self.app.push_screen_wait(SecretsScreen(shown.lacks))
            if values is None:
                return self._at_work(None)
        self._wait = Wait(f"reading {shown.job.path.name}")
        # Where the next process finds it, should this one be killed.
        pools, folder = self.app.pools(), passing_folders.begin(passing_folders.TASKS)
        # A name that is made up is another each time: the pool gets the one that the plan has shown.
        named = form if shown.spec is None else replace(form, name=shown.spec.name)
        try:
            plan = await ends.beside(lambda: job_plan(named, pools, values, clone=True))
            steps = await ends.beside(lambda: job_steps(plan, folder))
            self._wait = Wait(f"creating pool {plan.pool.name}" if plan.spec else "launching")
            self._creating = True
            with self.app.host_keys.held():
                begun = await create(self.app, plan)
        except FieldError as error:
            rmtree(folder, ignore_errors=True)
            self._at_work(None)
            self._say(one_line(str(error)), error=True)
            return None
        except BaseException:
            rmtree(folder, ignore_errors=True)  # all that the job brings may be in it
            raise
        finally:
            self._creating = False
        try:
            remember(form)
        except OSError as error:
            self.app.flash(f"this launch is not remembered: {error}", "error")
        self.app.unlaunched = None
        self.app.run_worker(follow_job(self.app, plan, steps, folder, begun), name="launch", exclusive=False)
        self.app.show_pool(begun.key)
        return None

    def _at_work(self, wait: Wait | None, focus: Widget | None = None) -> None:
        """Hold the form still while a launch goes on, or let it be edited again."""
        self._wait, self._busy = wait, wait is not None
        self.query_one("#form").disabled = self._busy
        if focus is not None:
            focus.focus()

    def _leave_for(self, form: Form, plan: LaunchPlan, tasks: Sequence[Task], begun: BegunPool) -> None:
        app = self.app
        app.unlaunched = None if form.pool else form
        try:
            remember(form)
        except OSError as error:
            app.flash(f"this launch is not remembered: {error}", "error")
        app.run_worker(follow(app, plan, tasks, begun, request_of(form)), name="launch", exclusive=False)
        app.show_pool(begun.key)

    def action_files(self) -> None:
        from ..dialogs.files import FilesScreen

        def picked(path: str | None) -> None:
            if files.again is not None:
                self._fill(files.again)
            elif path is not None:
                self.query_one("#script", Input).value = near(Path(path))
            if path is not None:
                self.query_one("#arguments").focus()

        at = expanded(self._fields.text("script")).parent
        files = FilesScreen(resolved(at) if is_dir(at) else current_folder(), self._recent)
        self.app.push_screen(files, picked)

    def action_pythons(self) -> None:
        from ..dialogs.pythons import PythonsScreen

        def picked(path: str | None) -> None:
            if path is not None:
                field = self.query_one("#python", Input)
                field.value = path and near(Path(path))
                field.focus()

        try:
            functions_of(self._fields.text("script"))
            script = path_of(self._fields.text("script"))
        except FieldError:
            script = None
        self.app.push_screen(PythonsScreen(script), picked)

    def action_accelerators(self) -> None:
        from ..dialogs.accelerators import AcceleratorsScreen

        field = self.query_one("#accelerator", Input)

        def picked(name: str | None) -> None:
            if name is not None:
                _, colon, count = field.value.partition(":")
                field.value = name if ":" in name else name + colon + count
                field.focus()

        choice = provider_choices().get(self.form().provider)
        if not field.disabled:
            self.app.push_screen(AcceleratorsScreen(_offered if choice and choice.chooses else None), picked)

    def action_copy_command(self) -> None:
        self.workers.cancel_group(self, "copy")
        self.app.copy(command_line(self.form()), "the command line")

    def action_copy_script(self) -> None:
        self._copy_script(self.form())

    @work(exclusive=True, group="copy")
    async def _copy_script(self, form: Form) -> None:
        pools = self.app.pools()
        text = await self._planner.work(form, lambda: python_script(form, pools))
        self.app.copy(text, "the Python script")

    @work(exclusive=True, group="presets")
    async def action_presets(self) -> None:
        await launch_presets.pick(self.app, self._fill_from)

    @work(exclusive=True, group="presets")
    async def action_save_preset(self) -> None:
        await launch_presets.ask_to_save(self.app, self.form(), self._preset)

    def _fill_from(self, form: Form, remarks: Sequence[str], preset: str) -> None:
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


def _offered() -> OfferList:
    """All that carries an accelerator, wherever it is."""
    from skyward_core.front.offers import offered

    return offered(ANY)
