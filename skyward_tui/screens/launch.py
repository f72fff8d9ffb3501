"""The launch form: what to run on the left, what will happen on the right."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Container, Horizontal, VerticalScroll
from textual.content import Content
from textual.suggester import SuggestFromList
from textual.widget import Widget
from textual.widgets import Button, Input, Label, Select, Static

from skyward_core.front.providers import DEFAULT
from skyward_core.model.errors import SkywardError
from skyward_core.model.setting import Field
from skyward_core.views.views import PoolView

from ..actions import bindings
from ..hints import words_of
from ..launch_form import (
    FieldError,
    Form,
    command_line,
    expanded,
    functions_of,
    path_of,
    provider_choices,
    python_script,
)
from ..packaged import named
from ..planning import Planned, Planner, Wait, loaded, planned
from ..recent import recent, remember
from ..styles import beside
from ..widgets.chrome import Crumbs, Panel
from ..widgets.toggles import Toggles
from ..words import one_line
from .base import BaseScreen
from .launching import BegunPool, create, follow

if TYPE_CHECKING:
    from skyward_core.front.launch_plan import LaunchPlan
    from skyward_core.front.plugins import PluginInfo
    from skyward_core.front.scripts import FunctionInfo, Task
    from skyward_core.model.setting import Setting

_NEW = "new pool"
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
        self._recent: list[Form] = []
        self._filled = ""  # the arguments that we put there ourselves
        self._functions: list[FunctionInfo] = []
        self._plugins_touched = False
        self._planner = Planner()
        self._shown: Form | None = None  # what the plan is about
        self._wait: Wait | None = None  # for the plan, or for what a launch is at
        self._busy = False
        self._creating = False

    def body(self) -> ComposeResult:
        from skyward_core.front.plugins import available

        live = [(f"{pool.name} ({pool.world_size:,} ranks, up)", pool.key) for pool in self._live()]
        with Container(id="sides"):
            with Panel(id="form") as form:
                form.border_title = "launch"
                yield _row("Script", _input("script", "path of a script; ctrl+o picks one"))
                functions = _Choice([], prompt="its functions", id="function", compact=True)
                python = _input("python", "its own; ctrl+n lists")
                yield _row("Function", functions, Label("python", classes="inner"), python)
                yield _row("Arguments", _input("arguments", "name=value …"))
                yield Static(id="hint", markup=False)
                used = self._pool if self._pool in dict(live).values() else ""  # it may be over by now
                pools = _Choice([(_NEW, ""), *live], value=used, allow_blank=False, id="pool", compact=True)
                yield _row(
                    "Pool", pools, Label("name", classes="inner"), _input("name", "from the script's name")
                )
                choices = [(choice.label, choice.name) for choice in provider_choices().values()]
                yield _row(
                    "Provider",
                    _Choice(choices, value=DEFAULT, allow_blank=False, id="provider", compact=True),
                )
                for id, setting in self._settings().items():
                    yield _setting_row(id, setting)
                yield _row(
                    "Nodes",
                    _input("nodes", value=USUAL_NODES, type="integer"),
                    Label("ranks per node", classes="inner"),
                    _input("ranks", value="1", type="integer"),
                    Label("accelerator", classes="inner"),
                    _input("accelerator", "any; ctrl+g lists"),
                )
                yield _row("Plugins", _Plugins(available(), id="plugins"))
                options = [("keep", "keep the pool afterwards"), ("one", "one rank only")]
                yield _row("Options", Toggles(options, {"keep"}, id="options"))
                with Horizontal(id="last"):
                    yield Button("Launch", id="launch", variant="primary", compact=True)
                    yield Static(id="message", markup=False)
            with Panel(id="plan") as box:
                box.border_title = "plan"
                with VerticalScroll(can_focus=False):
                    yield Static(id="why")

    def on_mount(self) -> None:
        self._recent = recent()
        self._suggest("script", [_near(Path(form.script)) for form in self._recent])
        if (form := self._first or (None if self._pool else self.app.unlaunched)) is not None:
            self._fill(form)
        self.query_one("#script").focus()
        self._review()
        self.pulse(self.app.clock())

    def pulse(self, now: float) -> None:
        self.query_one(Crumbs).show(["pools", "launch"])
        if self._wait is not None and (text := str(self._wait)):
            self._say(text)
            if self._shown != (form := self.form()):
                self._show_plan([], form)  # what stands there is about another
        super().pulse(now)

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
        return Form(
            script=self._text("script"),
            function=function if isinstance(function, str) else "",
            arguments=self._text("arguments"),
            python=self._text("python"),
            pool=pool if isinstance(pool, str) else "",
            name=self._text("name"),
            provider=provider if isinstance(provider, str) else DEFAULT,
            settings={id: text for id in self._settings() if (text := self._text(id))},
            accelerator=self._text("accelerator"),
            nodes=self._text("nodes"),
            ranks=self._text("ranks"),
            plugins=tuple(name for name, _ in plugins.options if name in plugins.chosen),
            keep="keep" in chosen,
            one="one" in chosen,
        )

    def _text(self, field: str) -> str:
        return self.query_one(f"#{field}", Input).value

    def _fill(self, form: Form) -> None:
        """Have the fields say what a launch said."""
        with self.prevent(Input.Changed, Select.Changed, Toggles.Changed):
            for field in ("arguments", "python", "name", "accelerator", "nodes", "ranks"):
                self.query_one(f"#{field}", Input).value = getattr(form, field)
            for id in self._settings():
                self.query_one(f"#{id}", Input).value = form.settings.get(id, "")
            self.query_one("#script", Input).value = _near(Path(form.script)) if form.script else ""
            self.query_one("#provider", Select).value = (
                form.provider if form.provider in provider_choices() else DEFAULT
            )
            self.query_one("#options", Toggles).chosen = {
                name for name, on in (("keep", form.keep), ("one", form.one)) if on
            }
            self.query_one("#plugins", Toggles).chosen = set(form.plugins)
        self._filled, self._plugins_touched = form.arguments, True
        self._show_provider(form.provider)
        self._script_changed(form.function)

    @on(Input.Changed, "#script")
    def _script_edited(self) -> None:
        self._script_changed()
        typed = self._text("script").strip()
        same = [form for form in self._recent if typed in (form.script, _near(Path(form.script)))]
        field = self.query_one("#arguments", Input)
        if field.value == self._filled:  # nobody has typed there since
            self._filled = field.value = same[0].arguments if same else ""
        self._suggest("arguments", [form.arguments for form in same])

    def _suggest(self, field: str, texts: list[str]) -> None:
        self.query_one(f"#{field}", Input).suggester = SuggestFromList(texts) if texts else None

    def _script_changed(self, function: str = "") -> None:
        """List the functions of the script, as soon as there is one."""
        select = self.query_one("#function", Select)
        try:
            self._functions = functions_of(self._text("script"))
        except FieldError:
            self._functions = []
        names = [info.name for info in self._functions]
        select.set_options([(name, name) for name in names])
        if names:
            select.value = function if function in names else names[0]
            self._choose_plugins()
        self._review()

    def _choose_plugins(self) -> None:
        """Switch on what the script plainly needs, until the person has a say; a pool has those it was made with."""
        from skyward_core.front.launch_plan import plugins_of
        from skyward_core.front.scripts import gang_frameworks_of

        toggles = self.query_one("#plugins", Toggles)
        if not self._plugins_touched:
            used = [pool for pool in self._live() if pool.key == self.form().pool]
            if used:
                wanted = plugins_of(used[0])
            else:
                wanted = gang_frameworks_of(path_of(self._text("script"))) if self._functions else []
            toggles.chosen = {name for name, _ in toggles.options if name in wanted}
            toggles.refresh()

    @on(Toggles.Changed, "#plugins")
    def _plugins_changed(self) -> None:
        self._plugins_touched = True

    @on(Select.Changed, "#pool")
    def _pool_changed(self) -> None:
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
        for field in ("name", "provider", *self._settings(), "nodes", "ranks", "accelerator", "plugins"):
            self.query_one(f"#{field}").disabled = bool(form.pool)
        info = next((info for info in self._functions if info.name == form.function), None)
        self.query_one("#hint", Static).update(str(info) if info else "")
        self._wait = self._wait or Wait("looking for the Python of the script")
        self._plan(form)

    @work(exclusive=True, group="plan")
    async def _plan(self, form: Form) -> None:
        """The newest wins: an edit cancels this one, and what it would have shown."""
        found = await self._work_out(form)
        if self.display:  # it loses its widgets one by one as it is left
            self._wait = None
            self._show(found)

    async def _work_out(self, form: Form) -> Planned:
        pools = self.app.pools()
        return await self._planner.work(form, lambda: planned(form, pools))

    def _show(self, found: Planned) -> None:
        form, error = found.form, found.error
        if error is None:
            self._say("")
            self._show_plan(found.told, form)
        else:
            self._say(one_line(str(error)), error=bool(form.script.strip()))
            self._show_plan([], form, str(error) if "\n" in str(error) or len(str(error)) > ROOM else "")

    def _show_plan(self, told: Sequence[tuple[str, str]], form: Form, why: str = "") -> None:
        self._shown = form
        parts: list[tuple[str, str]] = []
        styles = {"cost": "bold", "note": "$text-warning"}
        room = max(20, self.query_one("#why").size.width - 9)
        for heading, text in told:
            lines = ("\n" + " " * 9).join(textwrap.wrap(text, room))
            parts += [(f"{heading:<9}", "$muted"), (f"{lines}\n", styles.get(heading, ""))]
        if why:
            parts.append((f"{why}\n", "$text-error"))
        parts += [("as a command\n", "$muted"), (command_line(form), "$text-accent")]
        self.query_one("#why", Static).update(Content.assemble(*parts))

    def _say(self, text: str, *, error: bool = False) -> None:
        message = self.query_one("#message", Static)
        message.set_class(error, "-error")
        message.update(f"✗ {text}" if error else text)

    # Acting

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "back":
            return not self._creating
        return not (action in ("launch", "files", "pythons", "accelerators") and self._busy)

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
            if found.plan is not None:
                self._show_plan(found.told, form)
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
        task = await loaded(plan, self._wait)
        self._wait = Wait(f"creating pool {plan.pool.name}" if plan.spec else "launching")
        self._creating = True  # from here on there is something to tear down
        try:
            with self.app.host_keys.held():
                self._leave_for(form, plan, task, await create(self.app, plan))
        finally:
            self._creating = False

    def _at_work(self, wait: Wait | None, focus: Widget | None = None) -> None:
        """Hold the form still while a launch goes on, or let it be edited again."""
        self._wait, self._busy = wait, wait is not None
        self.query_one("#form").disabled = self._busy
        if focus is not None:
            focus.focus()

    def _leave_for(self, form: Form, plan: LaunchPlan, task: Task, begun: BegunPool) -> None:
        app = self.app
        app.unlaunched = None if form.pool else form
        try:
            remember(form)
        except OSError as error:
            app.flash(f"this launch is not remembered: {error}", "error")
        app.run_worker(follow(app, plan, task, begun), name="launch", exclusive=False)
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

    def action_back(self) -> None:
        self.app.pop_screen()


class _Choice(Select[str], inherit_bindings=False):
    """A list that opens by enter: the arrows go from field to field, past it as past all others."""

    BINDINGS = bindings("choice")


class _Plugins(Toggles):
    """What the plugin under the cursor is for stands at the form's edge while they have the focus; what it can be
    given from Python, in their tooltip."""

    def __init__(self, listed: list[PluginInfo], *, id: str) -> None:
        super().__init__([(each.name, each.name) for each in listed], set(), id=id)
        self._listed = listed

    def on_focus(self) -> None:
        self._tell()

    def on_blur(self) -> None:
        self._at_edge("")

    def action_move(self, step: int) -> None:
        super().action_move(step)
        self._tell()

    def _tell(self) -> None:
        if self._listed:
            here = self._listed[self._cursor]
            self._at_edge(one_line(f"{here.name}: {here.help}"))
            given = [f"{name}: {text}" for name, text in here.parameters.items()]
            self.tooltip = Content("\n".join([here.name, *given]))

    def _at_edge(self, text: str) -> None:
        for around in self.ancestors:
            if isinstance(around, Panel):
                around.border_subtitle = Content(text)


def _near(path: Path) -> str:
    """The path from here where it is below, an example by its name, any other whole."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else named(str(path))


def _row(label: str, *content: Widget) -> Horizontal:
    return Horizontal(Label(label), *content, classes="row")


def _setting_row(id: str, setting: Setting) -> Horizontal:
    """The field of a provider's setting, which is there while its provider is chosen."""
    look = setting.field() if setting.field else Field(label=setting.name)
    text = _input(id, look.placeholder or ("" if setting.default is None else str(setting.default)))
    text.suggester = SuggestFromList(look.suggestions)
    row = _row(look.label, text)
    row.id = f"{id}-row"
    row.display = False
    return row


def _input(name: str, placeholder: str = "", *, value: str = "", type: str = "text") -> Input:
    kind: Literal["integer", "text"] = "integer" if type == "integer" else "text"
    field = Input(value, placeholder, id=name, compact=True, type=kind, valid_empty=True)
    field.cursor_blink = False
    return field
