"""The fields of the launch form: what they are, and how a form is read from them and put into them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input, Select

from skyward_core.front.providers import DEFAULT

from ..actions import with_keys
from ..current_folder import current_folder
from ..launch_form import Form, provider_choices
from ..launch_packages import choices_for
from ..packaged import named
from ..widgets.call_fields import CallFields
from ..widgets.form_fields import Choice, FormFields, Plugins, inner, line, row, setting_row
from ..widgets.image_fields import ImageFields
from ..widgets.plugin_fields import PluginFields
from ..widgets.provider_field import CheckLines, ProviderField
from ..widgets.toggles import Toggles

if TYPE_CHECKING:
    from skyward_core.model.setting import Setting

_NEW = "new pool"
WHOLE = ":whole"  # stands among the names of functions, and is none
_OF_POOL = (
    "name", "provider", "nodes", "ranks", "accelerator", "allocation", "max_hourly", "selection", "budget", "wait",
    "plugins", "plugin-fields", "packages", "outputs", "image-fields",
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
        "plugin-fields",
        "packages",
        "outputs",
        "image-fields",
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
_USUAL_NODES = "4"


class LaunchFields(FormFields):
    """They know nothing of what a form would do.

    Args:
        live: pools that a launch may use: what they are called in the list, and their keys.
        used: key of the one that is chosen at first; empty for a new one.
        keymap: the person's keys, which some fields name.
    """

    def __init__(self, live: Sequence[tuple[str, str]], used: str, keymap: Mapping[str, str]) -> None:
        super().__init__(id="fields")
        self._live, self._used, self._keymap = live, used, keymap

    def compose(self) -> ComposeResult:
        from skyward_core.front.plugins import available

        say = partial(with_keys, keymap=self._keymap)
        yield row("Script", line("script", say("path of a script; {launch.files} picks one")))
        functions = Choice([], prompt="its functions", id="function", compact=True)
        python = line("python", say("its own; {launch.python} lists"))
        yield row("Function", functions, inner("python"), python)
        yield CallFields(id="call")
        used = self._used if self._used in dict(self._live).values() else ""  # it may be over by now
        pools = Choice([(_NEW, ""), *self._live], value=used, allow_blank=False, id="pool", compact=True)
        yield row("Pool", pools, inner("name"), line("name", "from the script's name"))
        choices = {choice.name: choice.label for choice in provider_choices().values()}
        with Vertical(id="where"):
            yield row("Provider", ProviderField(choices, DEFAULT, id="provider"))
            yield CheckLines(id="check")
        for id, setting in settings().items():
            yield setting_row(id, setting)
        yield row(
            "Nodes",
            line("nodes", value=_USUAL_NODES),
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
        yield PluginFields(id="plugin-fields")
        packages = Choice(choices_for(None, ""), value="", allow_blank=False, id="packages", compact=True)
        yield row("Packages", packages, inner("outputs"), line("outputs", "such as out/** *.pt"))
        yield ImageFields(id="image-fields")
        options = [
            ("keep", "keep the pool afterwards"), ("one", "one rank"), ("sweep", "sweep"),
        ]  # fmt: skip
        yield row("Options", Toggles(options, {"keep"}, id="options"))
        yield row(
            "Nodes each",
            line("gang", "one rank each; 2 nodes, or all"),
            id="gangs",
        )

    def form(self, carried: Form) -> Form:
        """What the fields say, and of another form what none of them shows."""
        function = self._choice("function")
        chosen = self.query_one("#options", Toggles).chosen
        plugins = self.query_one("#plugins", Toggles)
        return Form(
            script=self.text("script"),
            function="" if function == WHOLE else function,
            whole=function == WHOLE,
            arguments=self.text("arguments"),
            python=self.text("python"),
            pool=self._choice("pool"),
            name=self.text("name"),
            provider=self._choice("provider") or DEFAULT,
            settings={id: text for id in settings() if (text := self.text(id))},
            accelerator=self.text("accelerator"),
            allocation=self._choice("allocation"),
            max_hourly=self.text("max_hourly"),
            selection=self._choice("selection"),
            budget=self.text("budget"),
            wait=self.text("wait"),
            nodes=self.text("nodes"),
            ranks=self.text("ranks"),
            plugins=tuple(name for name, _ in plugins.options if name in plugins.chosen),
            parameters=self.query_one(PluginFields).texts,
            packages=self._choice("packages"),
            outputs=self.text("outputs"),
            keep="keep" in chosen,
            one="one" in chosen,
            sweep="sweep" in chosen,
            gang=self.text("gang") if "sweep" in chosen else "",
            timeout=carried.timeout,
            debug_wait=carried.debug_wait,
            image=self.query_one(ImageFields).text,
            torchrun=carried.torchrun,
        )

    def text(self, field: str) -> str:
        return self.query_one(f"#{field}", Input).value

    def _choice(self, field: str) -> str:
        value = self.query_one(f"#{field}", Select).value
        return value if isinstance(value, str) else ""

    def put(self, form: Form) -> None:
        """Have the fields say what a form says; but for the function and the packages, of which the script tells."""
        with self.prevent(Input.Changed, Select.Changed, Toggles.Changed):
            for field in _TEXTS:
                self.query_one(f"#{field}", Input).value = getattr(form, field)
            for field, listed in (("allocation", _MARKETS), ("selection", _ORDERS)):
                known = getattr(form, field) in [value for _, value in listed]
                self.query_one(f"#{field}", Select).value = getattr(form, field) if known else ""
            for id in settings():
                self.query_one(f"#{id}", Input).value = form.settings.get(id, "")
            self.query_one("#script", Input).value = near(Path(form.script)) if form.script else ""
            self.query_one("#provider", Select).value = (
                form.provider if form.provider in provider_choices() else DEFAULT
            )
            self.query_one("#options", Toggles).chosen = {
                name for name, on in (("keep", form.keep), ("one", form.one), ("sweep", form.sweep)) if on
            }
            self.query_one("#plugins", Toggles).chosen = set(form.plugins)
            self.query_one(PluginFields).fill(form.parameters)
            self.query_one(ImageFields).fill(form.image)
        self._show_provider(form.provider)

    def hold_still(self, form: Form, *, job: bool) -> None:
        """Have nobody change what a pool that is there, or a job file, has settled."""
        for field in (*_OF_POOL, *settings()):
            self.query_one(f"#{field}").disabled = bool(form.pool) or (job and field in _OF_FILE)
        for field in ("function", "python"):
            self.query_one(f"#{field}").disabled = job
        self.query_one(ImageFields).show()
        self.query_one(PluginFields).show(() if form.pool or job else form.plugins)

    @on(Select.Changed, "#provider")
    def _provider_changed(self, event: Select.Changed) -> None:
        """Machines that are named are all used unless a number is given; others need one."""
        if event.value != event.select.value:
            return  # the list's first choice, which the form was filled over before the list had told of it
        named = provider_choices()[str(event.value)].names_machines
        self._show_provider(str(event.value))
        nodes = self.query_one("#nodes", Input)
        if named and nodes.value == _USUAL_NODES:
            nodes.value = ""
        elif not named and not nodes.value:
            nodes.value = _USUAL_NODES

    def _show_provider(self, provider: str) -> None:
        choice = provider_choices().get(provider)
        for id in settings():
            self.query_one(f"#{id}-row").display = choice is not None and id in choice.fields
        self.query_one("#market").display = choice is not None and choice.chooses
        self.query_one("#money").display = choice is not None and choice.costs
        for waits in ("#wait", "#wait-label"):
            self.query_one(waits).display = choice is not None and choice.chooses
        named = choice is not None and choice.names_machines
        self.query_one("#nodes", Input).placeholder = "all" if named else ""


def settings() -> dict[str, Setting]:
    """The providers' settings that have a field, by its id."""
    return {id: setting for choice in provider_choices().values() for id, setting in choice.fields.items()}


def near(path: Path) -> str:
    """The path from here where it is below, an example by its name, any other whole."""
    folder = current_folder()
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else named(str(path))
