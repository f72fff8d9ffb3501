"""Groups of fields: call, image, provider, plugins, arguments."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Collapsible, Input, Label, Select, Static
from textual.widgets.collapsible import CollapsibleTitle

from skyward_core.client.launch.launch_request import OPTIONS
from skyward_core.client.launch.script_plugin_provider_discovery import DEFAULT_PROVIDER, argument_values
from skyward_core.model.errors import UsageError
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_tui.launch_form.form import (
    Form,
    package_choices,
    parse_arguments,
    provider_choices,
    script_argument,
    set_argument,
    setting_fields,
    value_list_error,
)
from skyward_tui.terminal_info import current_folder
from skyward_tui.text.error_hints import format_detail
from skyward_tui.text.number_and_time_format import clip_path, one_line
from skyward_tui.ui.actions import bindings, with_keys
from skyward_tui.ui.themes import read_style_sheet
from skyward_tui.widgets.form_fields import (
    Choice,
    FormFields,
    PluginToggles,
    Toggles,
    field_row,
    inline_label,
    setting_row,
    text_field,
    update_label,
)

if TYPE_CHECKING:
    from skyward_core.client.launch.script_plugin_provider_discovery import ArgumentField, FunctionInfo
    from skyward_core.model.machines import Check
    from skyward_core.model.setting_descriptors import Setting


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
        self.argument = asked
        self.label = Label(sanitize_line(asked.name))
        self._field = _field_of(asked, id, text)
        self._under = Static(classes="under", markup=False)
        self._problem, self._warning = "", ""
        self._value_count = 0  # values that are given

    def compose(self) -> ComposeResult:
        yield Horizontal(self.label, self._field, classes="row argument")
        yield self._under

    def on_mount(self) -> None:
        self._update_hint()

    @property
    def own_field(self) -> Widget:
        """That which takes it."""
        return self._field

    @property
    def text(self) -> str | None:
        """What the field gives; None where it gives nothing."""
        if isinstance(self._field, Toggles):
            is_on = bool(self._field.chosen)
            return None if is_on == self.argument.is_on else str(is_on).lower()
        value = self._field.value if isinstance(self._field, Input | Select) else ""
        return value if isinstance(value, str) and value else None

    def fill(self, text: str | None) -> None:
        """Have the field say what is given."""
        if isinstance(self._field, Toggles):
            self._field.chosen = _chosen(self.argument, text)
            self._field.refresh()
        elif isinstance(self._field, Select):
            # Before it is there, a list does not show what it is set to.
            if self._field.is_mounted and self._field.value != (choice := _choice(self.argument, text)):
                self._field.value = choice
        elif isinstance(self._field, Input) and (text or "") != self._field.value:
            self._field.value = text or ""

    def show_error(self, text: str | None, script: Path, *, sweep: bool) -> None:
        """Tell what is amiss with what is given; with ``sweep`` that are values between commas."""
        if text is not None and sweep:
            self._problem = value_list_error(self.argument, text)
            values = [] if self._problem else argument_values(self.argument.name, text)
        else:
            self._problem = "" if text is None else self.argument.validation_error(text)
            values = [] if text is None or self._problem else [text]
        missing = (said for value in values if (said := self.argument.missing_path_error(value, script)))
        self._warning = next(missing, "")
        self._value_count = len(values)
        self._update_hint()

    def on_descendant_focus(self) -> None:
        self._update_hint()

    def on_descendant_blur(self) -> None:
        self._update_hint()

    def _update_hint(self) -> None:
        if self._problem:
            said = Content.styled(sanitize_line(f"✗ {self._problem}"), "$text-error")
        elif self._warning:
            said = Content.styled(sanitize_line(f"! {self._warning}"), "$text-warning")
        elif self._value_count > 1:
            said = Content.styled(f"{self._value_count:,} values", "$text-accent")
        elif self._field.has_focus:
            says_itself = isinstance(self._field, Input) and not self._field.value
            said = Content.styled(sanitize_line(_about(self.argument, says_itself)), "$muted")
        else:
            said = Content("")
        update_label(self._under, said)
        self._under.display = bool(said.plain)


class ArgumentFields(Vertical):
    """The fields of the function that is chosen, or of plugins.

    Args:
        prefix: what the fields' ids begin with.
    """

    DEFAULT_CSS = read_style_sheet(__file__, "argument_fields")

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
        self._arguments: Sequence[ArgumentField] = ()
        self._rows: list[ArgumentRow] = []
        self._line = ""
        self._own_lines: list[str] = []  # lines that fields made of it, and that are still to come back
        self._made = 0  # times that there were other fields; ids of those that go are still taken

    def show(self, asked: Sequence[ArgumentField], line: str, script: Path, *, sweep: bool) -> None:
        """Have fields for these arguments, which say what the line says."""
        # Whoever types in a field is ahead of what comes back of it.
        is_own = line in self._own_lines
        del self._own_lines[: self._own_lines.index(line) + 1 if is_own else None]
        is_new = not is_own and line != self._line
        if is_new:
            self._line = line
        texts: Mapping[str, str] | None = parse_arguments(line)
        if list(asked) != list(self._arguments):
            self._arguments = asked
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
                    text = texts.get(each.argument.name)
                    if is_new:
                        each.fill(text)
                    each.show_error(text, script, sweep=sweep)

    def field_of(self, name: str) -> Widget | None:
        """The field of an argument; None where it has none."""
        return next((each.own_field for each in self._rows if each.argument.name == name), None)

    @on(Input.Changed)
    @on(Select.Changed)
    @on(Toggles.Changed)
    def _edited(self, event: Input.Changed | Select.Changed | Toggles.Changed) -> None:
        event.stop()
        changed = next((each for each in self._rows if event.control in each.walk_children()), None)
        if changed is None:
            return
        name, text = changed.argument.name, changed.text
        before = (parse_arguments(self._line) or {}).get(name)
        if text == before or (text is None and before == ""):
            return
        if isinstance(event.control, Select) and _choice(changed.argument, before) == (text or ""):
            return  # it only tells what it was made with
        self._line = set_argument(self._line, name, text, [each.name for each in self._arguments])
        self._own_lines.append(self._line)
        self.post_message(self.Edited(self._line))


def _field_of(asked: ArgumentField, id: str, text: str | None) -> Widget:
    if asked.kind == "switch":
        return Toggles([(_ON, _ON)], _chosen(asked, text), id=id)
    if asked.kind == "choice":
        first = "choose one" if asked.required else f"{sanitize_line(asked.default or 'nothing')}, if not chosen"
        listed = [(first, ""), *((sanitize_line(each), each) for each in asked.choices)]
        return Choice(listed, value=_choice(asked, text), allow_blank=False, id=id, compact=True)
    return text_field(id, sanitize_line(asked.placeholder), value=text or "")


def _about(asked: ArgumentField, says_itself: bool) -> str:
    """What stands below a field: how the signature has it, too, unless the empty field says that itself."""
    of = "" if says_itself else asked.placeholder
    listed = "a list as 1,2,3" if asked.type.startswith("*") else ""
    return "  ".join(filter(None, (of, listed, asked.help)))


def _choice(asked: ArgumentField, text: str | None) -> str:
    return "" if text is None else asked.match_choice(text) or ""


def _chosen(asked: ArgumentField, text: str | None) -> set[str]:
    known = None if text is None or asked.validation_error(text) else text.lower() in ("true", "yes", "on", "1")
    return {_ON} if (asked.is_on if known is None else known) else set()


ARGUMENTS, WORDS = "name=value …", "words of its own, such as --epochs 3"
VARIABLES = "NAME=value …, for the file's envs"
JOB = "a job file: its variables; secrets are asked for when it is launched"
WHOLE_SCRIPT_TEXT = "the main program of every rank; the words are its sys.argv"


class CallFields(Vertical):
    """That part of the form."""

    def compose(self) -> ComposeResult:
        yield field_row("Arguments", text_field("arguments", ARGUMENTS))
        yield Static(id="hint", markup=False)
        yield ArgumentFields(id="argument-fields")

    def show(self, called: FunctionInfo | None, script: Path, *, whole: bool, sweep: bool) -> None:
        """Have fields for a function.

        Args:
            called: None where none is chosen.
            whole: whether all of the script is run, and called with words.
            sweep: whether values are lists.
        """
        from skyward_core.client.launch.script_plugin_provider_discovery import argument_fields

        asked = [] if whole or called is None else argument_fields(called)
        said = WHOLE_SCRIPT_TEXT if whole else ""
        if called is not None and not whole:
            said = sanitize_line(one_line(called.doc) if asked else str(called))
        hint = self.query_one("#hint", Static)
        update_label(hint, Content(said))
        hint.display = bool(said)
        text = self.query_one("#arguments", Input)
        text.placeholder = WORDS if whole else ARGUMENTS
        self.query_one(ArgumentFields).show(asked, text.value, script, sweep=sweep)

    def show_variables(self, asked: Sequence[ArgumentField], file: Path) -> None:
        """Have fields for a job file's variables."""
        hint = self.query_one("#hint", Static)
        update_label(hint, Content(JOB))
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


class FoldingSection(Collapsible):
    """That part.

    Args:
        label: what it is called.
        content: what is in it.
    """

    DEFAULT_CSS = read_style_sheet(__file__, "folding_part")

    def __init__(self, label: str, *content: Widget, id: str) -> None:
        super().__init__(*content, title=label, id=id)
        self._label = label
        self._title = FoldTitle(label=label, collapsed_symbol="▸", expanded_symbol="▾", collapsed=True)

    def focus(self, scroll_visible: bool = True) -> Self:
        """Open it: who is led here is to see what is in it."""
        self.collapsed = False
        self._title.focus(scroll_visible)
        return self


class OptionFields(FoldingSection):
    """Fields for the parts of one option, which fold.

    Args:
        label: as of :class:`FoldingSection`.
        prefix: start of the ids of the fields, and of what holds them.
    """

    class Changed(Message):
        """A field was."""

    def __init__(self, label: str, prefix: str, *, id: str) -> None:
        super().__init__(label, ArgumentFields(id=f"{prefix}-arguments", prefix=prefix), id=id)
        self._line = ""  # what the fields say, as they know it themselves

    @property
    def texts(self) -> dict[str, str]:
        """What the fields say, by their names."""
        return parse_arguments(self._line) or {}

    def show_fields(self, asked: Sequence[ArgumentField] | None, told: str, wrong: str) -> None:
        """Show fields, unless they stay as they are, and behind the label what they say, or what is wrong with it."""
        if asked is not None:
            self.query_one(ArgumentFields).show(asked, self._line, Path(), sweep=False)
        text = sanitize_line(one_line(f"✗ {wrong}" if wrong else told)) or "as they are by default"
        self._title.label = Content.assemble(self._label, "  ", (text, "$text-error" if wrong else "$muted"))

    @on(ArgumentFields.Edited)
    def _edited(self, event: ArgumentFields.Edited) -> None:
        event.stop()
        before, self._line = self.texts, event.line
        self.on_edited({name for name in before | self.texts if before.get(name) != self.texts.get(name)})
        self.post_message(self.Changed())

    def on_edited(self, names: Collection[str]) -> None:
        """Handle new texts of these fields."""


class ImageFields(OptionFields):
    """The ranks' environment."""

    def __init__(self, *, id: str) -> None:
        super().__init__("Image and environment", "image", id=id)
        self._filled: dict[str, list[str]] = {}  # what a launch that was filled in says, by its fields

    @property
    def text(self) -> str:
        """What is said, as texts such as ``pip=einops``; such as nobody can split where a quotation has no end."""
        return " ".join(text for name, each in self.texts.items() if (text := self._text_of(name, each)))

    def fill(self, text: str) -> None:
        """Have the fields say what such texts do."""
        from skyward_core.client.launch.image_options import split_by_field

        try:
            texts = shlex.split(text)
        except ValueError:  # it was kept while somebody was typing
            texts = []
        self._filled = {}
        for each in texts:
            (name,) = split_by_field([each])
            self._filled.setdefault(name, []).append(each)
        self._line = shlex.join(f"{name}={said}" for name, said in split_by_field(texts).items())

    @on(FoldingSection.Expanded)
    def show(self) -> None:
        """Say on the line that folds what is set, or what is wrong; once it is open, have the fields there."""
        from skyward_core.client.launch.image_options import IMAGE_FIELDS, parse_image_options

        wrong = ""
        try:
            parse_image_options(shlex.split(self.text))
        except (UsageError, ValueError) as error:
            wrong = str(error)
        self.show_fields(None if self.collapsed else IMAGE_FIELDS, self.text, wrong)

    def _text_of(self, name: str, said: str) -> str:
        from skyward_core.client.launch.image_options import field_texts

        if name in self._filled:  # several commands stay several
            return shlex.join(self._filled[name])
        try:
            return shlex.join(field_texts(name, said))
        except ValueError:
            return f"{name}={said}"

    def on_edited(self, names: Collection[str]) -> None:
        self._filled = {name: texts for name, texts in self._filled.items() if name not in names}


class PluginFields(OptionFields):
    """Parameters of plugins; there while a plugin is on that takes some."""

    def __init__(self, *, id: str) -> None:
        super().__init__("Plugins' parameters", "plugin", id=id)
        self.display = False
        self._names: Sequence[str] | None = None
        self._arguments: list[ArgumentField] = []

    def fill(self, texts: Mapping[str, str]) -> None:
        """Have the fields say what is given."""
        self._line = shlex.join(f"{name}={text}" for name, text in texts.items())

    def show(self, names: Sequence[str]) -> None:
        """Have fields for the plugins that are on."""
        from skyward_core.client.launch.script_plugin_provider_discovery import parameter_fields

        if names != self._names:  # packages are looked through for others' plugins
            self._names, self._arguments = names, parameter_fields(names)
        self.display = bool(self._arguments)
        known = {each.name: each for each in self._arguments}
        said = {name: text for name, text in self.texts.items() if name in known}
        wrong = next((f"{name} is amiss" for name, text in said.items() if known[name].validation_error(text)), "")
        self.show_fields(self._arguments, ", ".join(f"{name}={text}" for name, text in said.items()), wrong)


State = Literal["asked", "ok", "warn", "fail"]

_GLYPHS: Mapping[str, str] = {"asked": "…", "ok": "✓", "warn": "!", "fail": "✗"}
_STYLES: Mapping[str, str] = {"ok": "$muted", "warn": "$text-warning", "fail": "$text-error"}
_ORDER = ("fail", "warn", "ok")


def worst_state(lines: Sequence[Check]) -> State:
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
        problems = [line for each in _ORDER[:2] for line in lines if line.state == each]
        shown = problems[:rows]
        said = [(line.state, f"{_GLYPHS[line.state]} {_check_text(line)}") for line in shown]
        if len(problems) > len(shown):
            said.append(("warn", f"  and {len(problems) - len(shown)} more: skyward-tui doctor tells all"))
        self._fine = "" if problems or rows <= 1 else "; ".join(_check_text(line) for line in lines)
        if self._fine:
            return self._show_fine()
        content = Content("\n").join(Content.styled(text, _STYLES[state]) for state, text in said)
        self.remove_class("-fine")
        update_label(self, content)
        self.display = bool(said)

    def _show_fine(self) -> None:
        """One line; where it names a folder that has no room, its end."""
        text = f"{_GLYPHS['ok']} {self._fine}"
        self.add_class("-fine")
        update_label(self, Content.styled(clip_path(text, self.size.width or len(text)), _STYLES["ok"]))
        self.display = True

    def on_resize(self) -> None:
        if self._fine:
            self._show_fine()


def _check_text(line: Check) -> str:
    return sanitize_line(one_line(f"{line.subject}: {format_detail(line)}"))


_NEW = "new pool"
WHOLE = ":whole"  # stands among the names of functions, and is none
TEXT_FIELDS = [name for name, each in OPTIONS.items() if each.row and not each.is_flag]
"""Options of a launch with a line or a list of their own."""
FLAGS = [(name, each.label) for name, each in reversed([*OPTIONS.items()]) if each.row and each.is_flag]
_OF_POOL = ["name", "packages", "plugins", "provider", "plugin_settings", "image_settings"]
_OF_POOL += [name for name in TEXT_FIELDS if OPTIONS[name].part]
# What a job file says itself.
_OF_FILE = set(_OF_POOL) - {"name", "provider", "budget", "wait_for_capacity"}


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
        from skyward_core.client.launch.script_plugin_provider_discovery import available_plugins

        hint = with_keys("path of a script; {launch.files} picks one", keymap=self._keymap)
        yield field_row("Script", text_field("script", hint))
        functions = Choice([], prompt="its functions", id="function", compact=True)
        yield field_row("Function", functions, *self._option_fields("Function"))
        yield CallFields(id="call")
        used = self._used if self._used in dict(self._live).values() else ""  # it may be over by now
        pools = Choice([(_NEW, ""), *self._live], value=used, allow_blank=False, id="pool", compact=True)
        yield field_row("Pool", pools, inline_label("name"), text_field("name", "from the script's name"))
        choices = {name: choice.label for name, choice in provider_choices().items()}
        with Vertical(id="where"):
            yield field_row("Provider", ProviderField(choices, DEFAULT_PROVIDER, id="provider"))
            yield CheckLines(id="check")
        for id, setting in setting_fields_by_id().items():
            yield setting_row(id, setting)
        yield field_row("Nodes", *self._option_fields("Nodes"))
        yield field_row("Market", *self._option_fields("Market"), id="market")
        yield field_row("Budget $", *self._option_fields("Budget $"), id="money")
        yield field_row("Plugins", PluginToggles(available_plugins(), id="plugins"))
        yield PluginFields(id="plugin_settings")
        packages = Choice(package_choices(None, ""), value="", allow_blank=False, id="packages", compact=True)
        yield field_row("Packages", packages, *self._option_fields("Packages"))
        yield ImageFields(id="image_settings")
        yield field_row("Options", Toggles(FLAGS, {"keep"}, id="options"))
        yield field_row("Nodes each", text_field("gang", "one rank each; 2 nodes, or all"), id="gangs")

    def _option_fields(self, row: str) -> Iterator[Widget]:
        """Yield the fields, with their labels, that options of a launch declare for a row."""
        for name in TEXT_FIELDS:
            option = OPTIONS[name]
            if option.row != row:
                continue
            if option.label:
                yield inline_label(option.label, id=f"{name}-label")
            if option.choices:
                yield Choice(option.choices, value="", allow_blank=False, id=name, compact=True)
            else:
                kind = "integer" if option.type.startswith("int | Literal") else "text"
                hint = with_keys(option.placeholder, keymap=self._keymap)
                yield text_field(name, hint, value=getattr(Form(), name), type=kind)

    def form(self, carried: Form) -> Form:
        """What the fields say, and of another form what none of them shows."""
        function = self.text("function")
        chosen = self.query_one("#options", Toggles).chosen
        plugins = self.query_one("#plugins", Toggles)
        said: dict[str, Any] = {name: name in chosen for name, _ in FLAGS}
        said |= {name: self.text(name) for name in (*TEXT_FIELDS, "script", "arguments", "pool", "name", "packages")}
        return replace(
            carried,
            **said,
            function="" if function == WHOLE else function,
            whole=function == WHOLE,
            provider=self.text("provider") or DEFAULT_PROVIDER,
            settings={id: text for id in setting_fields_by_id() if (text := self.text(id))},
            plugins=tuple(name for name, _ in plugins.options if name in plugins.chosen),
            plugin_settings=self.query_one(PluginFields).texts,
            gang=self.text("gang") if "sweep" in chosen else "",
            image_settings=self.query_one(ImageFields).text,
        )

    def text(self, field: str) -> str:
        """Return what a line or a list says; "" if nothing is chosen."""
        found = self.query_one(f"#{field}")
        value = found.value if isinstance(found, Input | Select) else ""
        return value if isinstance(value, str) else ""

    def fill(self, form: Form) -> None:
        """Have the fields say what a form says; but for the function and the packages, of which the script tells."""
        with self.prevent(Input.Changed, Select.Changed, Toggles.Changed):
            for name in (*TEXT_FIELDS, "arguments", "name", "gang"):
                field, given = self.query_one(f"#{name}"), getattr(form, name)
                if isinstance(field, Input):
                    field.value = given
                elif isinstance(field, Select):
                    field.value = given if given in [value for _, value in OPTIONS[name].choices] else ""
            for id in setting_fields_by_id():
                self.query_one(f"#{id}", Input).value = form.settings.get(id, "")
            self.query_one("#script", Input).value = display_path(Path(form.script)) if form.script else ""
            self.query_one("#provider", Select).value = (
                form.provider if form.provider in provider_choices() else DEFAULT_PROVIDER
            )
            self.query_one("#options", Toggles).chosen = {name for name, _ in FLAGS if getattr(form, name)}
            self.query_one("#plugins", Toggles).chosen = set(form.plugins)
            self.query_one(PluginFields).fill(form.plugin_settings)
            self.query_one(ImageFields).fill(form.image_settings)
        self._show_provider(form.provider)

    def lock_fields(self, form: Form, *, job: bool) -> None:
        """Have nobody change what a pool that is there, or a job file, has settled."""
        for name in (*_OF_POOL, *setting_fields_by_id()):
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
        named = provider_choices()[str(event.value)].has_named_machines
        self._show_provider(str(event.value))
        nodes = self.query_one("#nodes", Input)
        if named and nodes.value == Form().nodes:
            nodes.value = ""
        elif not named and not nodes.value:
            nodes.value = Form().nodes

    def _show_provider(self, provider: str) -> None:
        choice = provider_choices().get(provider)
        for id in setting_fields_by_id():
            self.query_one(f"#{id}-row").display = choice is not None and id in setting_fields(provider)
        self.query_one("#market").display = choice is not None and choice.chooses
        self.query_one("#money").display = choice is not None and choice.costs
        for waits in ("#wait_for_capacity", "#wait_for_capacity-label"):
            self.query_one(waits).display = choice is not None and choice.chooses
        named = choice is not None and choice.has_named_machines
        self.query_one("#nodes", Input).placeholder = "all" if named else ""


def setting_fields_by_id() -> dict[str, Setting]:
    """The providers' settings that have a field, by its id."""
    return {id: setting for provider in provider_choices() for id, setting in setting_fields(provider).items()}


def display_path(path: Path) -> str:
    """The path from here where it is below, an example by its name, any other whole."""
    folder = current_folder()
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else script_argument(str(path))
