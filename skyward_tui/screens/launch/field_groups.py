"""Groups of fields: call, image, provider, plugins, arguments."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Collapsible, Input, Label, Select, Static
from textual.widgets.collapsible import CollapsibleTitle

from skyward_core.client.launch.discovery import DEFAULT
from skyward_core.model.errors import UsageError
from skyward_core.util.terminal_safe_text import field
from skyward_tui.launch_form.form import (
    Form,
    amiss,
    choices_for,
    given,
    named,
    provider_choices,
    values_of,
    with_argument,
)
from skyward_tui.terminal_info import current_folder
from skyward_tui.text.error_hints import detail_of
from skyward_tui.text.number_format import clip_path, one_line
from skyward_tui.ui.actions import bindings, with_keys
from skyward_tui.ui.style_sheets import beside
from skyward_tui.widgets.form_fields import (
    Choice,
    FormFields,
    Plugins,
    Toggles,
    inner,
    line,
    row,
    say,
    setting_row,
)

if TYPE_CHECKING:
    from skyward_core.client.launch.discovery import ArgumentField, FunctionInfo
    from skyward_core.model.machines import Check
    from skyward_core.model.provider_settings import Setting


_ON = "on"
_LABEL, _WIDEST = 12, 30  # cells of a name, with what is around it


class ArgumentRow(Vertical):
    """One argument. Under its field stands what is amiss; while it has the focus, what it is.

    Args:
        asked: what it wants.
        id: of the field.
        text: what is given; None where nothing is.
    """

    def __init__(self, asked: ArgumentField, id: str, text: str | None) -> None:
        super().__init__()
        self.asked = asked
        self.label = Label(field(asked.name))
        self._field = _field_of(asked, id, text)
        self._under = Static(classes="under", markup=False)
        self._amiss, self._warning = "", ""
        self._many = 0  # values that are given

    def compose(self) -> ComposeResult:
        yield Horizontal(self.label, self._field, classes="row argument")
        yield self._under

    def on_mount(self) -> None:
        self._show_under()

    @property
    def own_field(self) -> Widget:
        """That which takes it."""
        return self._field

    @property
    def text(self) -> str | None:
        """What the field gives; None where it gives nothing."""
        if isinstance(self._field, Toggles):
            is_on = bool(self._field.chosen)
            return None if is_on == self.asked.is_on else str(is_on).lower()
        value = self._field.value if isinstance(self._field, Input | Select) else ""
        return value if isinstance(value, str) and value else None

    def fill(self, text: str | None) -> None:
        """Have the field say what is given."""
        if isinstance(self._field, Toggles):
            self._field.chosen = _chosen(self.asked, text)
            self._field.refresh()
        elif isinstance(self._field, Select):
            # Before it is there, a list does not show what it is set to.
            if self._field.is_mounted and self._field.value != (choice := _choice(self.asked, text)):
                self._field.value = choice
        elif isinstance(self._field, Input) and (text or "") != self._field.value:
            self._field.value = text or ""

    def tell(self, text: str | None, script: Path, *, sweep: bool) -> None:
        """Tell what is amiss with what is given; with ``sweep`` that are values between commas."""
        if text is not None and sweep:
            self._amiss = amiss(self.asked, text)
            values = [] if self._amiss else values_of(self.asked.name, text)
        else:
            self._amiss = "" if text is None else self.asked.amiss(text)
            values = [] if text is None or self._amiss else [text]
        missing = (said for value in values if (said := self.asked.missing(value, script)))
        self._warning = next(missing, "")
        self._many = len(values)
        self._show_under()

    def on_descendant_focus(self) -> None:
        self._show_under()

    def on_descendant_blur(self) -> None:
        self._show_under()

    def _show_under(self) -> None:
        if self._amiss:
            said = Content.styled(field(f"✗ {self._amiss}"), "$text-error")
        elif self._warning:
            said = Content.styled(field(f"! {self._warning}"), "$text-warning")
        elif self._many > 1:
            said = Content.styled(f"{self._many:,} values", "$text-accent")
        elif self._field.has_focus:
            says_itself = isinstance(self._field, Input) and not self._field.value
            said = Content.styled(field(_about(self.asked, says_itself)), "$muted")
        else:
            said = Content("")
        say(self._under, said)
        self._under.display = bool(said.plain)


class ArgumentFields(Vertical):
    """The fields of the function that is chosen, or of plugins.

    Args:
        prefix: what the fields' ids begin with.
    """

    DEFAULT_CSS = beside(__file__, "argument_fields")

    @dataclass
    class Edited(Message):
        """A field was.

        Attributes:
            line: what the line of arguments is to say.
        """

        line: str

    def __init__(self, *, id: str, prefix: str = "argument") -> None:
        super().__init__(id=id)
        self._prefix = prefix
        self._asked: Sequence[ArgumentField] = ()
        self._rows: list[ArgumentRow] = []
        self._line = ""
        self._own: list[str] = []  # lines that fields made of it, and that are still to come back
        self._made = 0  # times that there were other fields; ids of those that go are still taken

    def show(self, asked: Sequence[ArgumentField], line: str, script: Path, *, sweep: bool) -> None:
        """Have fields for these arguments, which say what the line says."""
        # Whoever types in a field is ahead of what comes back of it.
        is_own = line in self._own
        del self._own[: self._own.index(line) + 1 if is_own else None]
        is_new = not is_own and line != self._line
        if is_new:
            self._line = line
        texts: Mapping[str, str] | None = given(line)
        if list(asked) != list(self._asked):
            self._asked = asked
            self._made += 1
            self.remove_children()
            self._rows = [
                ArgumentRow(each, f"{self._prefix}-{self._made}-{number}", (texts or {}).get(each.name))
                for number, each in enumerate(asked)
            ]
            self.mount(*self._rows)
            widest = max((len(each.name) for each in asked), default=0)
            for each in self._rows:
                each.label.styles.width = max(_LABEL, min(_WIDEST, widest + 3))
        if texts is not None:
            with self.prevent(Input.Changed, Select.Changed, Toggles.Changed):
                for each in self._rows:
                    text = texts.get(each.asked.name)
                    if is_new:
                        each.fill(text)
                    each.tell(text, script, sweep=sweep)

    def field_of(self, name: str) -> Widget | None:
        """The field of an argument; None where it has none."""
        return next((each.own_field for each in self._rows if each.asked.name == name), None)

    @on(Input.Changed)
    @on(Select.Changed)
    @on(Toggles.Changed)
    def _edited(self, event: Input.Changed | Select.Changed | Toggles.Changed) -> None:
        event.stop()
        changed = next((each for each in self._rows if event.control in each.walk_children()), None)
        if changed is None:
            return
        name, text = changed.asked.name, changed.text
        before = (given(self._line) or {}).get(name)
        if text == before or (text is None and before == ""):
            return
        if isinstance(event.control, Select) and _choice(changed.asked, before) == (text or ""):
            return  # it only tells what it was made with
        self._line = with_argument(self._line, name, text, [each.name for each in self._asked])
        self._own.append(self._line)
        self.post_message(self.Edited(self._line))


def _field_of(asked: ArgumentField, id: str, text: str | None) -> Widget:
    if asked.kind == "switch":
        return Toggles([(_ON, _ON)], _chosen(asked, text), id=id)
    if asked.kind == "choice":
        first = "choose one" if asked.required else f"{field(asked.default or 'nothing')}, if not chosen"
        listed = [(first, ""), *((field(each), each) for each in asked.choices)]
        return Choice(listed, value=_choice(asked, text), allow_blank=False, id=id, compact=True)
    return line(id, field(asked.look), value=text or "")


def _about(asked: ArgumentField, says_itself: bool) -> str:
    """What stands below a field: how the signature has it, too, unless the empty field says that itself."""
    of = "" if says_itself else asked.look
    listed = "a list as 1,2,3" if asked.type.startswith("*") else ""
    return "  ".join(filter(None, (of, listed, asked.help)))


def _choice(asked: ArgumentField, text: str | None) -> str:
    return "" if text is None else asked.choice_of(text) or ""


def _chosen(asked: ArgumentField, text: str | None) -> set[str]:
    known = None if text is None or asked.amiss(text) else text.lower() in ("true", "yes", "on", "1")
    return {_ON} if (asked.is_on if known is None else known) else set()


ARGUMENTS, WORDS = "name=value …", "words of its own, such as --epochs 3"
VARIABLES = "NAME=value …, for the file's envs"
JOB = "a job file: its variables; secrets are asked for when it is launched"
WHOLE_SCRIPT_TEXT = "the main program of every rank; the words are its sys.argv"


class CallFields(Vertical):
    """That part of the form."""

    def compose(self) -> ComposeResult:
        yield row("Arguments", line("arguments", ARGUMENTS))
        yield Static(id="hint", markup=False)
        yield ArgumentFields(id="argument-fields")

    def show(self, called: FunctionInfo | None, script: Path, *, whole: bool, sweep: bool) -> None:
        """Have fields for a function.

        Args:
            called: None where none is chosen.
            whole: whether all of the script is run, and called with words.
            sweep: whether values are lists.
        """
        from skyward_core.client.launch.discovery import argument_fields

        asked = [] if whole or called is None else argument_fields(called)
        said = WHOLE_SCRIPT_TEXT if whole else ""
        if called is not None and not whole:
            said = field(one_line(called.doc) if asked else str(called))
        hint = self.query_one("#hint", Static)
        say(hint, Content(said))
        hint.display = bool(said)
        text = self.query_one("#arguments", Input)
        text.placeholder = WORDS if whole else ARGUMENTS
        self.query_one(ArgumentFields).show(asked, text.value, script, sweep=sweep)

    def show_variables(self, asked: Sequence[ArgumentField], file: Path) -> None:
        """Have fields for a job file's variables."""
        hint = self.query_one("#hint", Static)
        say(hint, Content(JOB))
        hint.display = True
        text = self.query_one("#arguments", Input)
        text.placeholder = VARIABLES
        self.query_one(ArgumentFields).show(asked, text.value, file, sweep=False)

    @on(ArgumentFields.Edited)
    def _argument_edited(self, event: ArgumentFields.Edited) -> None:
        event.stop()
        self.query_one("#arguments", Input).value = event.line


class FoldTitle(CollapsibleTitle, inherit_bindings=False):
    """Its line, which has the focus."""

    BINDINGS = bindings("fold")


class FoldingPart(Collapsible):
    """That part.

    Args:
        label: what it is called.
        content: what is in it.
    """

    DEFAULT_CSS = beside(__file__, "folding_part")

    def __init__(self, label: str, *content: Widget, id: str) -> None:
        super().__init__(*content, title=label, id=id)
        self._label = label
        self._title = FoldTitle(label=label, collapsed_symbol="▸", expanded_symbol="▾", collapsed=True)

    def focus(self, scroll_visible: bool = True) -> Self:
        """Open it: who is led here is to see what is in it."""
        self.collapsed = False
        self._title.focus(scroll_visible)
        return self

    def tell(self, said: str, *, amiss: bool = False) -> None:
        """Say behind its name what is set in it."""
        self._title.label = Content.assemble(self._label, "  ", (said, "$text-error" if amiss else "$muted"))


LABEL = "Image and environment"


class ImageFields(FoldingPart):
    """That part."""

    class ImageChanged(Message):
        """A field was."""

    def __init__(self, *, id: str) -> None:
        super().__init__(LABEL, ArgumentFields(id="image-arguments", prefix="image"), id=id)
        self._line = ""  # what each field says, as they know it themselves
        self._texts: dict[str, list[str]] = {}  # and of a launch that was filled in, what that is made of

    @property
    def text(self) -> str:
        """What is said, as texts such as ``pip=einops``; such as nobody can split where a quotation has no end."""
        said = given(self._line) or {}
        return " ".join(text for name, each in said.items() if (text := self._text_of(name, each)))

    def fill(self, text: str) -> None:
        """Have the fields say what such texts do."""
        from skyward_core.client.launch.image_options import by_field

        try:
            texts = shlex.split(text)
        except ValueError:  # it was kept while somebody was typing
            texts = []
        self._texts = {}
        for each in texts:
            (name,) = by_field([each])
            self._texts.setdefault(name, []).append(each)
        self._line = shlex.join(f"{name}={said}" for name, said in by_field(texts).items())

    @on(FoldingPart.Expanded)
    def show(self) -> None:
        """Say on the line that folds what is set, or what is wrong; once it is open, have the fields there."""
        from skyward_core.client.launch.image_options import IMAGE_FIELDS, image_asked

        if not self.collapsed:
            self.query_one(ArgumentFields).show(IMAGE_FIELDS, self._line, Path(), sweep=False)
        try:
            image_asked(shlex.split(self.text))
        except (UsageError, ValueError) as error:
            self.tell(f"✗ {field(one_line(str(error)))}", amiss=True)
        else:
            self.tell(field(one_line(self.text)) if self.text else "as they are by default")

    def _text_of(self, name: str, said: str) -> str:
        from skyward_core.client.launch.image_options import texts_of

        if name in self._texts:  # several commands stay several
            return shlex.join(self._texts[name])
        try:
            return shlex.join(texts_of(name, said))
        except ValueError:
            return f"{name}={said}"

    @on(ArgumentFields.Edited)
    def _edited(self, event: ArgumentFields.Edited) -> None:
        event.stop()
        said = given(self._line) or {}
        self._line, now = event.line, given(event.line) or {}
        changed = {name for name in said.keys() | now.keys() if said.get(name) != now.get(name)}
        self._texts = {name: texts for name, texts in self._texts.items() if name not in changed}
        self.post_message(self.ImageChanged())


PLUGIN_PARAMETERS_LABEL = "Plugins' parameters"


class PluginFields(FoldingPart):
    """That part. It is there while a plugin is on that takes something."""

    class ParametersChanged(Message):
        """A parameter was."""

    def __init__(self, *, id: str) -> None:
        super().__init__(PLUGIN_PARAMETERS_LABEL, ArgumentFields(id="plugin-arguments", prefix="parameter"), id=id)
        self.display = False
        self._line = ""
        self._names: Sequence[str] | None = None
        self._asked: list[ArgumentField] = []

    @property
    def texts(self) -> Mapping[str, str]:
        """What is given, by names such as ``torch.backend``; of plugins that are off, too."""
        return given(self._line) or {}

    def fill(self, texts: Mapping[str, str]) -> None:
        """Have the fields say what is given."""
        self._line = shlex.join(f"{name}={text}" for name, text in texts.items())

    def show(self, names: Sequence[str]) -> None:
        """Have fields for the plugins that are on."""
        from skyward_core.client.launch.discovery import parameter_fields

        if names != self._names:  # packages are looked through for others' plugins
            self._names, self._asked = names, parameter_fields(names)
        asked = self._asked
        self.display = bool(asked)
        self.query_one(ArgumentFields).show(asked, self._line, Path(), sweep=False)
        known = {each.name: each for each in asked}
        said = {name: text for name, text in self.texts.items() if name in known}
        amiss = [name for name, text in said.items() if known[name].amiss(text)]
        if amiss:
            self.tell(f"✗ {field(amiss[0])} is amiss", amiss=True)
        else:
            told = ", ".join(f"{name}={text}" for name, text in said.items())
            self.tell(field(one_line(told)) if told else "as they are by default")

    @on(ArgumentFields.Edited)
    def _edited(self, event: ArgumentFields.Edited) -> None:
        event.stop()
        self._line = event.line
        self.post_message(self.ParametersChanged())


State = Literal["asked", "ok", "warn", "fail"]

_GLYPHS: Mapping[str, str] = {"asked": "…", "ok": "✓", "warn": "!", "fail": "✗"}
_STYLES: Mapping[str, str] = {"ok": "$muted", "warn": "$text-warning", "fail": "$text-error"}
_ORDER = ("fail", "warn", "ok")


def state_of(lines: Sequence[Check]) -> State:
    """The worst of what a check-up says."""
    found = {line.state for line in lines}
    return "fail" if "fail" in found else "warn" if "warn" in found else "ok"


class ProviderField(Choice):
    """Providers, as (name, label)."""

    def __init__(self, labels: Mapping[str, str], value: str, *, id: str) -> None:
        self._labels = labels
        self._states: dict[str, State] = {}
        super().__init__(self._listed(), value=value, allow_blank=False, id=id, compact=True)

    def mark(self, name: str, state: State | None) -> None:
        """Say how a provider is; None where nobody knows."""
        if self._states.get(name) == state:
            return
        self._states.pop(name, None)
        if state is not None:
            self._states[name] = state
        chosen = self.value
        with self.prevent(Select.Changed):
            self.set_options(self._listed())
            self.value = chosen
            self.mutate_reactive(Choice.value)  # type: ignore[misc]  # what is called otherwise now is shown so

    def _listed(self) -> list[tuple[str, str]]:
        return [
            (f"{_GLYPHS[state]} {label}" if (state := self._states.get(name)) else label, name)
            for name, label in self._labels.items()
        ]


class CheckLines(Static):
    """What a check-up said, the worst first; of one that went well, a line where there is room."""

    _fine = ""

    def show(self, lines: Sequence[Check], rows: int) -> None:
        """Show it.

        Args:
            rows: how many lines there is room for where something is amiss.
        """
        amiss = [line for each in _ORDER[:2] for line in lines if line.state == each]
        shown = amiss[:rows]
        said = [(line.state, f"{_GLYPHS[line.state]} {_told(line)}") for line in shown]
        if len(amiss) > len(shown):
            said.append(("warn", f"  and {len(amiss) - len(shown)} more: skyward-tui doctor tells all"))
        self._fine = "" if amiss or rows <= 1 else "; ".join(_told(line) for line in lines)
        if self._fine:
            return self._show_fine()
        content = Content("\n").join(Content.styled(text, _STYLES[state]) for state, text in said)
        self.remove_class("-fine")
        say(self, content)
        self.display = bool(said)
        return None

    def _show_fine(self) -> None:
        """One line; where it names a folder that has no room, its end."""
        text = f"{_GLYPHS['ok']} {self._fine}"
        self.add_class("-fine")
        say(self, Content.styled(clip_path(text, self.size.width or len(text)), _STYLES["ok"]))
        self.display = True

    def on_resize(self) -> None:
        if self._fine:
            self._show_fine()


def _told(line: Check) -> str:
    return field(one_line(f"{line.subject}: {detail_of(line)}"))


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
        from skyward_core.client.launch.discovery import available_plugins as available

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
        for name in (*_OF_POOL, *settings()):
            self.query_one(f"#{name}").disabled = bool(form.pool) or (job and name in _OF_FILE)
        for name in ("function", "python"):
            self.query_one(f"#{name}").disabled = job
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
