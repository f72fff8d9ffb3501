"""The launch form: what to run on the left, what will happen on the right."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical
from textual.suggester import SuggestFromList
from textual.widget import Widget
from textual.widgets import Button, Input, Select, Static

from skyward_core.front.providers import DEFAULT
from skyward_core.model.errors import SkywardError
from skyward_core.views.views import PoolView

from .. import ends
from ..actions import bindings, first_key, with_keys
from ..hints import words_of
from ..launch_form import (
    FieldError,
    Form,
    command_line,
    expanded,
    functions_of,
    is_job,
    path_of,
    provider_choices,
    python_script,
    request_of,
)
from ..launch_packages import choices_for
from ..packaged import named
from ..planning import Planned, Planner, Wait, loaded, planned
from ..recent import recent, remember
from ..several_values import mean_a_sweep
from ..styles import beside
from ..widgets.call_fields import CallFields
from ..widgets.chrome import Crumbs, Panel
from ..widgets.form_fields import Choice, FormFields, Plugins, inner, line, row, setting_row
from ..widgets.plan_panel import PlanPanel
from ..widgets.provider_field import CheckLines, ProviderField
from ..widgets.toggles import Toggles
from ..words import one_line
from . import launch_presets
from .base import BaseScreen
from .launch_beside import LaunchBeside
from .launch_checks import ProviderChecks
from .launching import BegunPool, create, follow, follow_job

if TYPE_CHECKING:
    from skyward_core.front.launch_plan import LaunchPlan
    from skyward_core.front.scripts import FunctionInfo, Task
    from skyward_core.model.setting import Setting

    from ..job_form import JobPlan

_EDITS = (
    "launch",
    "files",
    "pythons",
    "accelerators",
    "presets",
)  # what changes the form, which a launch holds still
_NEW = "new pool"
_WHOLE = ":whole"  # stands among the names of functions, and is none
_OF_POOL = (
    "name", "provider", "nodes", "ranks", "accelerator", "allocation", "max_hourly", "selection", "budget", "wait",
    "plugins", "packages", "outputs",
)  # fmt: skip
# What a job file says itself.
_OF_FILE = frozenset(
    {
        "nodes",
        "ranks",
        "accelerator",
        "allocation",
        "max_hourly",
        "selection",
        "plugins",
        "packages",
        "outputs",
    }
)
_TEXTS = (
    "arguments", "python", "name", "accelerator", "nodes", "ranks", "outputs", "max_hourly", "budget", "wait", "gang",
)  # fmt: skip
_MARKETS = [
    ("on demand", ""),
    ("spot", "spot"),
    ("spot, else on demand", "spot-if-available"),
    ("cheapest of both", "cheapest"),
]
_ORDERS = [("cheapest first", ""), ("first region first", "first")]
TYPING = 0.3  # seconds after the last letter in which a provider is not asked yet
USUAL_NODES = "4"
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
        self._beside = LaunchBeside(self)
        self._shown: Form | None = None  # what the plan is about
        self._wait: Wait | None = None  # for the plan, or for what a launch is at
        self._busy = False
        self._creating = False
        self._preset = ""  # its name, where the form was filled from one
        self._remarks: Sequence[str] = ()  # what of that is not there any more

    def body(self) -> ComposeResult:
        from skyward_core.front.plugins import available

        say = partial(with_keys, keymap=self.app.keys)
        live = [(f"{pool.name} ({pool.world_size:,} ranks, up)", pool.key) for pool in self._live()]
        with Container(id="sides"):
            with Panel(id="form") as form:
                form.border_title = "launch"
                with FormFields(id="fields"):
                    yield row("Script", line("script", say("path of a script; {launch.files} picks one")))
                    functions = Choice([], prompt="its functions", id="function", compact=True)
                    python = line("python", say("its own; {launch.python} lists"))
                    yield row("Function", functions, inner("python"), python)
                    yield CallFields(id="call")
                    used = self._pool if self._pool in dict(live).values() else ""  # it may be over by now
                    pools = Choice(
                        [(_NEW, ""), *live], value=used, allow_blank=False, id="pool", compact=True
                    )
                    yield row("Pool", pools, inner("name"), line("name", "from the script's name"))
                    choices = {choice.name: choice.label for choice in provider_choices().values()}
                    with Vertical(id="where"):
                        yield row("Provider", ProviderField(choices, DEFAULT, id="provider"))
                        yield CheckLines(id="check")
                    for id, setting in self._settings().items():
                        yield setting_row(id, setting)
                    yield row(
                        "Nodes",
                        line("nodes", value=USUAL_NODES),
                        inner("ranks per node"),
                        line("ranks", value="1", type="integer"),
                        inner("accelerator"),
                        line("accelerator", say("any; {launch.accelerators} lists")),
                    )
                    markets = Choice(_MARKETS, value="", allow_blank=False, id="allocation", compact=True)
                    orders = Choice(_ORDERS, value="", allow_blank=False, id="selection", compact=True)
                    yield row(
                        "Market", markets, inner("at most $/h"), line("max_hourly", "any"), inner("tries"), orders,
                        id="market",
                    )  # fmt: skip
                    yield row(
                        "Budget $", line("budget", "none"),
                        inner("wait for machines", id="wait-label"), line("wait", "not; or 2h"), id="money",
                    )  # fmt: skip
                    yield row("Plugins", Plugins(available(), id="plugins"))
                    packages = Choice(
                        choices_for(None, ""), value="", allow_blank=False, id="packages", compact=True
                    )
                    yield row("Packages", packages, inner("outputs"), line("outputs", "such as out/** *.pt"))
                    options = [
                        ("keep", "keep the pool afterwards"), ("one", "one rank"), ("sweep", "sweep"),
                    ]  # fmt: skip
                    yield row("Options", Toggles(options, {"keep"}, id="options"))
                    yield row(
                        "Nodes each",
                        line("gang", "one rank each; 2 nodes, or all"),
                        id="gangs",
                    )
                with Horizontal(id="last"):
                    yield Button("Launch", id="launch", variant="primary", compact=True)
                    yield Static(id="message", markup=False)
                yield self._beside.code
            yield PlanPanel(first_key("launch.view", self.app.keys))

    def on_mount(self) -> None:
        self._recent = recent()
        self._suggest("script", [_near(Path(form.script)) for form in self._recent])
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

    def form(self) -> Form:
        """What the fields say."""
        function, pool = self.query_one("#function", Select).value, self.query_one("#pool", Select).value
        provider = self.query_one("#provider", Select).value
        chosen = self.query_one("#options", Toggles).chosen
        plugins = self.query_one("#plugins", Toggles)
        packages = self.query_one("#packages", Select).value
        return Form(
            script=self._text("script"),
            function=function if isinstance(function, str) and function != _WHOLE else "",
            whole=function == _WHOLE,
            arguments=self._text("arguments"),
            python=self._text("python"),
            pool=pool if isinstance(pool, str) else "",
            name=self._text("name"),
            provider=provider if isinstance(provider, str) else DEFAULT,
            settings={id: text for id in self._settings() if (text := self._text(id))},
            accelerator=self._text("accelerator"),
            allocation=self._choice("allocation"),
            max_hourly=self._text("max_hourly"),
            selection=self._choice("selection"),
            budget=self._text("budget"),
            wait=self._text("wait"),
            nodes=self._text("nodes"),
            ranks=self._text("ranks"),
            plugins=tuple(name for name, _ in plugins.options if name in plugins.chosen),
            packages=packages if isinstance(packages, str) else "",
            outputs=self._text("outputs"),
            keep="keep" in chosen,
            one="one" in chosen,
            sweep="sweep" in chosen,
            gang=self._text("gang") if "sweep" in chosen else "",
            timeout=self._carried.timeout,
            debug_wait=self._carried.debug_wait,
            torchrun=self._carried.torchrun,
        )

    def _text(self, field: str) -> str:
        return self.query_one(f"#{field}", Input).value

    def _choice(self, field: str) -> str:
        value = self.query_one(f"#{field}", Select).value
        return value if isinstance(value, str) else ""

    def _fill(self, form: Form) -> None:
        """Have the fields say what a launch said."""
        self._carried = form
        with self.prevent(Input.Changed, Select.Changed, Toggles.Changed):
            for field in _TEXTS:
                self.query_one(f"#{field}", Input).value = getattr(form, field)
            for field, listed in (("allocation", _MARKETS), ("selection", _ORDERS)):
                known = getattr(form, field) in [value for _, value in listed]
                self.query_one(f"#{field}", Select).value = getattr(form, field) if known else ""
            for id in self._settings():
                self.query_one(f"#{id}", Input).value = form.settings.get(id, "")
            self.query_one("#script", Input).value = _near(Path(form.script)) if form.script else ""
            self.query_one("#provider", Select).value = (
                form.provider if form.provider in provider_choices() else DEFAULT
            )
            self.query_one("#options", Toggles).chosen = {
                name for name, on in (("keep", form.keep), ("one", form.one), ("sweep", form.sweep)) if on
            }
            self.query_one("#plugins", Toggles).chosen = set(form.plugins)
        self._filled, self._plugins_touched = form.arguments, True
        self._show_provider(form.provider)
        self._script_changed(_WHOLE if form.whole else form.function, form.packages)

    @on(Input.Changed, "#script")
    def _script_edited(self) -> None:
        self._script_changed()
        typed = self._text("script").strip()
        same = [form for form in self._recent if typed in (form.script, _near(Path(form.script)))]
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
            self._functions, self._readable = functions_of(self._text("script")), True
        except FieldError:
            self._functions, self._readable = [], False
        listed = [(info.name, info.name) for info in self._functions]
        if self._readable:
            listed.append(("the whole script", _WHOLE))
        select.set_options(listed)
        if listed:
            select.value = function if function in [name for _, name in listed] else listed[0][1]
            self._choose_plugins()
        self._list_packages(packages)
        self._review()

    def _list_packages(self, chosen: str) -> None:
        select = self.query_one("#packages", Select)
        listed = choices_for(path_of(self._text("script")) if self._readable else None, chosen)
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
                wanted = gang_frameworks_of(path_of(self._text("script")), whole=form.whole)
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

    @on(Select.Changed, "#provider")
    def _provider_changed(self, event: Select.Changed) -> None:
        """Machines that are named are all used unless a number is given; others need one."""
        if event.value != event.select.value:
            return  # the list's first choice, which the form was filled over before the list had told of it
        named = provider_choices()[str(event.value)].names_machines
        self._show_provider(str(event.value))
        nodes = self.query_one("#nodes", Input)
        if named and nodes.value == USUAL_NODES:
            nodes.value = ""
        elif not named and not nodes.value:
            nodes.value = USUAL_NODES

    def _show_provider(self, provider: str) -> None:
        choice = provider_choices().get(provider)
        for id in self._settings():
            self.query_one(f"#{id}-row").display = choice is not None and id in choice.fields
        self.query_one("#market").display = choice is not None and choice.chooses
        self.query_one("#money").display = choice is not None and choice.costs
        for waits in ("#wait", "#wait-label"):
            self.query_one(waits).display = choice is not None and choice.chooses
        named = choice is not None and choice.names_machines
        self.query_one("#nodes", Input).placeholder = "all" if named else ""

    @staticmethod
    def _settings() -> dict[str, Setting]:
        """The providers' settings that have a field, by its id."""
        return {
            id: setting for choice in provider_choices().values() for id, setting in choice.fields.items()
        }

    @on(Input.Changed)
    @on(Select.Changed)
    @on(Toggles.Changed)
    def _review(self) -> None:
        """Say what the form as it stands would do, or what is wrong with it."""
        if self._busy:
            return
        form = self.form()
        job = is_job(form.script)
        for field in (*_OF_POOL, *self._settings()):
            self.query_one(f"#{field}").disabled = bool(form.pool) or (job and field in _OF_FILE)
        for field in ("function", "python"):
            self.query_one(f"#{field}").disabled = job
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

    async def _work_out(self, form: Form) -> Planned:
        pools = self.app.pools()
        return await self._planner.work(form, lambda: planned(form, pools))

    def _show(self, found: Planned) -> None:
        form, error = found.form, found.error
        self._beside.share()
        self._mark(error.field if error and form.script.strip() else "")
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

    def _mark(self, wrong: str) -> None:
        """Have one field stand out: the message beside the button is about that."""
        for field in self.query("#form .-wrong"):
            field.remove_class("-wrong")
        if wrong:
            self.query_one(f"#{wrong}").add_class("-wrong")

    def _say(self, text: str, *, error: bool = False) -> None:
        message = self.query_one("#message", Static)
        message.set_class(error, "-error")
        text = with_keys(text, self.app.keys)
        message.update(f"✗ {text}" if error else text)

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
            found = await self._work_out(form)
            if found.job is not None:
                self._show_plan(found.told, form, script=found.script)
                await self._begin_job(form, found.job)
                return
            if found.plan is not None:
                self._show_plan(found.told, form, script=found.script)
                await self._begin(form, found.plan)
                return
        except SkywardError as error:
            if self.display:
                self._at_work(None, focus)
                self._say(one_line(words_of(error)), error=True)
                self._show_plan([], form, words_of(error))
            return
        if self.display and found.error is not None:
            self._at_work(None)
            self._show(found)
            self._say(one_line(str(found.error)), error=True)
            self.query_one(f"#{found.error.field}").focus()

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
        from ..dialogs.secrets import SecretsScreen
        from ..job_form import job_plan, job_steps

        values: dict[str, str] | None = {}
        if shown.lacks:
            values = await self.app.push_screen_wait(SecretsScreen(shown.lacks))
            if values is None:
                return self._at_work(None)
        self._wait = Wait(f"reading {shown.job.path.name}")
        pools, folder = self.app.pools(), Path(mkdtemp(prefix="skyward-job-"))
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
                self.query_one("#script", Input).value = _near(Path(path))
            if path is not None:
                self.query_one("#arguments").focus()

        here = expanded(self._text("script")).parent
        files = FilesScreen(here.resolve() if here.is_dir() else Path.cwd(), self._recent)
        self.app.push_screen(files, picked)

    def action_pythons(self) -> None:
        from ..dialogs.pythons import PythonsScreen

        def picked(path: str | None) -> None:
            if path is not None:
                field = self.query_one("#python", Input)
                field.value = path and _near(Path(path))
                field.focus()

        try:
            functions_of(self._text("script"))
            script = path_of(self._text("script"))
        except FieldError:
            script = None
        self.app.push_screen(PythonsScreen(script), picked)

    def action_accelerators(self) -> None:
        from ..dialogs.accelerators import AcceleratorsScreen

        field = self.query_one("#accelerator", Input)

        def picked(name: str | None) -> None:
            if name is not None:
                _, colon, count = field.value.partition(":")
                field.value = name + colon + count
                field.focus()

        if not field.disabled:
            self.app.push_screen(AcceleratorsScreen(), picked)

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
        self.app.pop_screen()


def _near(path: Path) -> str:
    """The path from here where it is below, an example by its name, any other whole."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else named(str(path))
