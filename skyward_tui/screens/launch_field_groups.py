"""Groups of fields of the launch form: call, image, provider, plugins, arguments."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Collapsible, Input, Label, Select, Static
from textual.widgets.collapsible import CollapsibleTitle

from skyward_core.client.launch import plugin_and_provider_catalog as catalog
from skyward_core.client.launch.launch_option_declarations import JOB_LIMITS, OPTIONS
from skyward_core.model.errors import UsageError
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_tui.launch_form.form import (
    Form,
    is_job,
    package_choices,
    parse_arguments,
    provider_choices,
    relative_path,
    script_argument,
    setting_fields,
)
from skyward_tui.screens.launch_argument_fields import ArgumentFields
from skyward_tui.text.error_hint_text import format_detail
from skyward_tui.text.text_width_tables_and_ascii import clip_path, one_line
from skyward_tui.ui.actions import bindings, with_keys
from skyward_tui.ui.themes import read_style_sheet
from skyward_tui.widgets.form_fields import (
    Choice,
    PluginToggles,
    Toggles,
    field_row,
    setting_row,
    text_field,
    update_label,
)

if TYPE_CHECKING:
    from skyward_core.model.machines_checks_and_gpu_use import Check
    from skyward_core.model.provider_settings_schema import Setting


ARGUMENTS, WORDS = "name=value …", "the script's arguments, such as --epochs 3"
VARIABLES = "NAME=value … (variables of the job file)"
JOB = "job file with its variables; the app asks for secrets at launch"
WHOLE_SCRIPT_TEXT = "runs as the main program of every rank, with these arguments as sys.argv"


class CallFields(Vertical):
    """Fields for the function and its arguments."""

    def compose(self) -> ComposeResult:
        yield field_row("Arguments", text_field("arguments", ARGUMENTS))
        yield Static(id="hint", markup=False)
        yield ArgumentFields(id="argument-fields")

    def show(
        self, form: Form, arguments: Sequence[catalog.ArgumentField], called: catalog.FunctionInfo | None, script: Path
    ) -> None:
        """Show fields for a function, a whole script or a job file.

        Args:
            arguments: Arguments of the function, or variables of the job file.
            called: The function; None if none is selected.
        """
        job = is_job(form.script)
        hint, placeholder = (JOB, VARIABLES) if job else (WHOLE_SCRIPT_TEXT, WORDS) if form.whole else ("", ARGUMENTS)
        if called is not None:
            hint = sanitize_line(one_line(called.doc) if arguments else str(called))
        label, line = self.query_one("#hint", Static), self.query_one("#arguments", Input)
        update_label(label, Content(hint))
        label.display = bool(hint)
        line.placeholder = placeholder
        self.query_one(ArgumentFields).show(arguments, line.value, script, sweep=form.sweep and not job)

    @on(ArgumentFields.Edited)
    def _argument_edited(self, event: ArgumentFields.Edited) -> None:
        event.stop()
        self.query_one("#arguments", Input).value = event.line


class FoldTitle(CollapsibleTitle, inherit_bindings=False):
    """Title line of a section, which takes the focus."""

    BINDINGS = bindings("fold")


class FoldedFields(Collapsible):
    """Collapsible section of the form. Its title shows a summary of the values of its fields.

    Args:
        label: Start of the title.
        children: The fields.
    """

    DEFAULT_CSS = read_style_sheet(__file__, "folded_fields")

    def __init__(self, label: str, *children: Widget, id: str) -> None:
        super().__init__(*children, title=label, id=id)
        self._label = label
        self._title = FoldTitle(label=label, collapsed_symbol="▸", expanded_symbol="▾", collapsed=True)

    def focus(self, scroll_visible: bool = True) -> Self:
        """Expand the section and focus its title."""
        self.collapsed = False
        self._title.focus(scroll_visible)
        return self

    def show_summary(self, text: str, *, is_error: bool = False) -> None:
        """Show a summary behind the label."""
        style = "$text-error" if is_error else "$muted"
        self._title.label = Content.assemble(self._label, "  ", (sanitize_line(one_line(text)), style))


class OptionFields(FoldedFields):
    """Collapsible section with the fields of a launch option that consists of several values.

    Args:
        label: Title.
        prefix: Start of the fields' ids.
    """

    class Changed(Message):
        """Message that a field was edited."""

    def __init__(self, label: str, prefix: str, *, id: str) -> None:
        super().__init__(label, ArgumentFields(id=f"{prefix}-arguments", prefix=prefix), id=id)
        self._line = ""  # values of the section's fields, as one line NAME=value …

    @property
    def texts(self) -> dict[str, str]:
        """Values of the fields by name."""
        return parse_arguments(self._line) or {}

    def show_fields(self, arguments: Sequence[catalog.ArgumentField] | None, values: str, error: str) -> None:
        """Show fields. The title shows their values, or an error.

        Args:
            arguments: Arguments of the fields; None leaves the fields unchanged.
            values: Values, as text.
            error: The error; "" if there is none.
        """
        if arguments is not None:
            self.query_one(ArgumentFields).show(arguments, self._line, Path(), sweep=False)
        self.show_summary(f"✗ {error}" if error else values or "defaults", is_error=bool(error))

    @on(ArgumentFields.Edited)
    def _edited(self, event: ArgumentFields.Edited) -> None:
        event.stop()
        before, self._line = self.texts, event.line
        self.on_edited({name for name in before | self.texts if before.get(name) != self.texts.get(name)})
        self.post_message(self.Changed())

    def on_edited(self, names: Collection[str]) -> None:
        """React to edits of the fields with these names. Subclasses override this method."""


class ImageFields(OptionFields):
    """Section with the fields of the ranks' image: packages, setup command, variables, and files to send."""

    def __init__(self, *, id: str) -> None:
        super().__init__("Image and environment", "image", id=id)
        self._filled: dict[str, list[str]] = {}  # by field: original texts of the launch that filled the form

    @property
    def text(self) -> str:
        """Values as texts such as ``pip=einops``, quoted for a shell. Cannot be parsed while a quotation is
        unfinished."""
        return " ".join(text for name, each in self.texts.items() if (text := self._text_of(name, each)))

    def fill(self, text: str) -> None:
        """Fill the fields from texts such as ``pip=einops``."""
        from skyward_core.client.launch.image_option_parsing import split_by_field

        try:
            texts = shlex.split(text)
        except ValueError:  # the saved text has an unfinished quotation, so it cannot be split into values
            texts = []
        self._filled = {}
        for each in texts:
            (name,) = split_by_field([each])
            self._filled.setdefault(name, []).append(each)
        self._line = shlex.join(f"{name}={value}" for name, value in split_by_field(texts).items())

    @on(Collapsible.Expanded)
    def show(self) -> None:
        """Show the values or an error in the title. If the section is expanded, show the fields."""
        from skyward_core.client.launch.image_option_parsing import IMAGE_FIELDS, parse_image_options

        problem = ""
        try:
            parse_image_options(shlex.split(self.text))
        except (UsageError, ValueError) as error:
            problem = str(error)
        self.show_fields(None if self.collapsed else IMAGE_FIELDS, self.text, problem)

    def _text_of(self, name: str, value: str) -> str:
        from skyward_core.client.launch.image_option_parsing import field_texts

        if name in self._filled:  # use the original texts, because the field joins several commands to one text
            return shlex.join(self._filled[name])
        try:
            return shlex.join(field_texts(name, value))
        except ValueError:
            return f"{name}={value}"

    def on_edited(self, names: Collection[str]) -> None:
        self._filled = {name: texts for name, texts in self._filled.items() if name not in names}


class PluginFields(OptionFields):
    """Fields of plugin parameters. Hidden if no checked plugin has parameters."""

    def __init__(self, *, id: str) -> None:
        super().__init__("Plugin parameters", "plugin", id=id)
        self.display = False
        self._names: Sequence[str] | None = None
        self._arguments: list[catalog.ArgumentField] = []

    def fill(self, texts: Mapping[str, str]) -> None:
        """Fill the fields from values of plugin parameters by name."""
        self._line = shlex.join(f"{name}={text}" for name, text in texts.items())

    def show(self, names: Sequence[str]) -> None:
        """Show fields for the checked plugins."""
        # call ``catalog.parameter_fields`` only for changed names, because the function searches all installed packages
        if names != self._names:
            self._names, self._arguments = names, catalog.parameter_fields(names)
        self.display = bool(self._arguments)
        known = {each.name: each for each in self._arguments}
        values = {name: text for name, text in self.texts.items() if name in known}
        error = next((f"{name} is invalid" for name, text in values.items() if known[name].validation_error(text)), "")
        self.show_fields(self._arguments, ", ".join(f"{name}={text}" for name, text in values.items()), error)


State = Literal["asked", "ok", "warn", "fail"]

_GLYPHS: Mapping[str, str] = {"asked": "…", "ok": "✓", "warn": "!", "fail": "✗"}
_STYLES: Mapping[str, str] = {"ok": "$muted", "warn": "$text-warning", "fail": "$text-error"}
_ORDER = ("fail", "warn", "ok")


def worst_state(lines: Sequence[Check]) -> State:
    """Return the worst state among the results of checks."""
    states = {line.state for line in lines}
    return "fail" if "fail" in states else "warn" if "warn" in states else "ok"


class ProviderField(Choice):
    """Drop-down list of providers, each marked with the result of its check."""

    def __init__(self, labels: Mapping[str, str], value: str, *, id: str) -> None:
        self._labels = labels
        self._states: dict[str, State | None] = {}
        super().__init__(self._listed(), value=value, allow_blank=False, id=id, compact=True)

    def mark(self, name: str, state: State | None) -> None:
        """Mark a provider with the state of its check; None removes the mark."""
        if self._states.get(name) == state:
            return
        self._states[name] = state
        self.replace_options(self._listed(), str(self.value))

    def _listed(self) -> list[tuple[str, str]]:
        return [
            (f"{_GLYPHS[state]} {label}" if (state := self._states.get(name)) else label, name)
            for name, label in self._labels.items()
        ]


class CheckLines(Static):
    """Results of a provider check, the worst first. Successful checks are shown only if there is space."""

    _fine = ""

    def show(self, lines: Sequence[Check], rows: int) -> None:
        """Show the results of a provider check.

        Args:
            rows: Maximum number of rows for problems.
        """
        problems = [line for each in _ORDER[:2] for line in lines if line.state == each]
        shown = problems[:rows]
        texts = [(line.state, f"{_GLYPHS[line.state]} {_check_text(line)}") for line in shown]
        if len(problems) > len(shown):
            texts.append(("warn", f"  and {len(problems) - len(shown)} more (run skyward-tui doctor)"))
        self._fine = "" if problems or rows <= 1 else "; ".join(_check_text(line) for line in lines)
        if self._fine:
            return self._show_fine()
        content = Content("\n").join(Content.styled(text, _STYLES[state]) for state, text in texts)
        self.remove_class("-fine")
        update_label(self, content)
        self.display = bool(texts)

    def _show_fine(self) -> None:
        """Show successful checks in one line, cut so that the end of a path stays visible."""
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
WHOLE = ":whole"  # value of the drop-down list of functions that stands for the whole script
# Launch options with a text field or a list.
TEXT_FIELDS = [name for name, each in OPTIONS.items() if each.row and not each.is_flag]
FLAGS = [(name, each.label) for name, each in reversed([*OPTIONS.items()]) if each.row and each.is_flag]
_OF_POOL = ["name", "packages", "plugins", "provider", "plugin_settings", "image_settings"]
_OF_POOL += [name for name in TEXT_FIELDS if OPTIONS[name].part]
# Attributes of a form that describe the machines and the environment of a pool.
POOL_SETTINGS = [*_OF_POOL[1:], "settings"]
# Fields that are disabled for a job file, because the job file defines their values.
_OF_FILE = set(_OF_POOL) - {"name", "provider", *JOB_LIMITS}


class LaunchFields(VerticalScroll, can_focus=False, inherit_bindings=False):
    """All fields of the launch form.

    The keys that usually scroll a container scroll the plan instead.

    Args:
        live: Label and key of each pool that a launch may use.
        used: Key of the initially selected pool; "" for a new pool.
        keymap: The user's own keys, which some placeholders mention.
    """

    def __init__(self, live: Sequence[tuple[str, str]], used: str, keymap: Mapping[str, str]) -> None:
        super().__init__(id="fields")
        self._live, self._used, self._keymap = live, used, keymap

    def compose(self) -> ComposeResult:
        hint = with_keys("path of a script ({launch.files}: pick)", keymap=self._keymap)
        yield field_row("Script", text_field("script", hint))
        functions = Choice([], prompt="pick a script first", id="function", compact=True)
        yield field_row("Function", functions, *self._option_fields("Function"))
        yield CallFields(id="call")
        # the pool may have ended since the screen was opened
        used = self._used if self._used in dict(self._live).values() else ""
        pools = Choice([(_NEW, ""), *self._live], value=used, allow_blank=False, id="pool", compact=True)
        yield field_row("Pool", pools, Label("name", classes="inner"), text_field("name", "default: script name"))
        choices = {name: choice.label for name, choice in provider_choices().items()}
        with Vertical(id="where"):
            yield field_row("Provider", ProviderField(choices, catalog.DEFAULT_PROVIDER, id="provider"))
            yield CheckLines(id="check")
        yield from (setting_row(id, setting) for id, setting in setting_fields_by_id().items())
        yield field_row("Nodes", *self._option_fields("Nodes"))
        yield field_row("Market", *self._option_fields("Market"), id="market")
        yield field_row("Budget $", *self._option_fields("Budget $"), id="money")
        yield field_row("Nodes/trial", text_field("gang", "2, all; empty: one rank"), id="gangs")
        plugins = field_row("", PluginToggles(catalog.available_plugins(), id="plugins"))
        yield FoldedFields("Plugins", plugins, PluginFields(id="plugin_settings"), id="plugin-section")
        packages = Choice(package_choices(None, ""), value="", allow_blank=False, id="packages", compact=True)
        yield FoldedFields(
            "More",
            field_row("Packages", packages, *self._option_fields("Packages")),
            ImageFields(id="image_settings"),
            field_row("Options", Toggles(FLAGS, {"keep"}, id="options")),
            field_row("Restarts", *self._option_fields("Restarts")),
            id="more-section",
        )

    def _option_fields(self, row: str) -> Iterator[Widget]:
        """Yield the labels and fields of the launch options whose ``row`` in ``OPTIONS`` is the given row."""
        for name in TEXT_FIELDS:
            option = OPTIONS[name]
            if option.row != row:
                continue
            if option.label:
                yield Label(option.label, classes="inner", id=f"{name}-label")
            if option.choices:
                yield Choice(option.choices, value="", allow_blank=False, id=name, compact=True)
            else:
                kind = "integer" if option.type.startswith("int | Literal") else "text"
                hint = with_keys(option.placeholder, keymap=self._keymap)
                yield text_field(name, hint, value=getattr(Form(), name), type=kind)

    def form(self, carried: Form) -> Form:
        """Return the form with the values of the fields. Values that have no field are taken from ``carried``."""
        function = self.text("function")
        chosen = self.query_one("#options", Toggles).chosen
        plugins = self.query_one("#plugins", Toggles)
        values: dict[str, Any] = {name: name in chosen for name, _ in FLAGS}
        values |= {name: self.text(name) for name in (*TEXT_FIELDS, "script", "arguments", "pool", "name", "packages")}
        return replace(
            carried,
            **values,
            function="" if function == WHOLE else function,
            whole=function == WHOLE,
            provider=self.text("provider") or catalog.DEFAULT_PROVIDER,
            settings={id: text for id in setting_fields_by_id() if (text := self.text(id))},
            plugins=tuple(name for name, _ in plugins.options if name in plugins.chosen),
            plugin_settings=self.query_one(PluginFields).texts,
            gang=self.text("gang") if "sweep" in chosen else "",
            image_settings=self.query_one(ImageFields).text,
        )

    def text(self, field: str) -> str:
        """Return the value of a text field or a drop-down list; "" if nothing is chosen."""
        widget = self.query_one(f"#{field}")
        value = widget.value if isinstance(widget, Input | Select) else ""
        return value if isinstance(value, str) else ""

    def fill(self, form: Form) -> None:
        """Fill the fields from a form. Function and packages are left out, because their choices depend on the
        script."""
        with self.prevent(Input.Changed, Select.Changed, Toggles.Changed):
            for name in (*TEXT_FIELDS, "arguments", "name", "gang"):
                field, value = self.query_one(f"#{name}"), getattr(form, name)
                if isinstance(field, Input):
                    field.value = value
                elif isinstance(field, Select):
                    field.value = value if value in [value for _, value in OPTIONS[name].choices] else ""
            for id in setting_fields_by_id():
                self.query_one(f"#{id}", Input).value = form.settings.get(id, "")
            self.query_one("#script", Input).value = display_path(Path(form.script)) if form.script else ""
            self.query_one("#provider", Select).value = (
                form.provider if form.provider in provider_choices() else catalog.DEFAULT_PROVIDER
            )
            self.query_one("#options", Toggles).chosen = frozenset(name for name, _ in FLAGS if getattr(form, name))
            self.query_one("#plugins", Toggles).chosen = frozenset(form.plugins)
            self.query_one(PluginFields).fill(form.plugin_settings)
            self.query_one(ImageFields).fill(form.image_settings)
        self._show_provider(form.provider)

    def lock_fields(self, form: Form, *, job: bool, detected: bool = False) -> None:
        """Disable fields whose values an existing pool or a job file defines, and summarize the folded fields.

        Args:
            job: Whether the script is a job file.
            detected: Whether the plugins are those that the script imports.
        """
        for name in (*_OF_POOL, *setting_fields_by_id()):
            self.query_one(f"#{name}").disabled = bool(form.pool) or (job and name in _OF_FILE)
        for name in ("function", "python"):
            self.query_one(f"#{name}").disabled = job
        flags = self.query_one("#options", Toggles)
        flags.options = [each for each in FLAGS if not (form.pool and OPTIONS[each[0]].part)]
        flags.action_move(0)  # moves the cursor to an existing check box, because the row may now have fewer boxes
        self.query_one(ImageFields).show()
        self.query_one(PluginFields).show(() if form.pool or job else form.plugins)
        origin = " (of the pool)" if form.pool else " (detected)" if detected and form.plugins else ""
        plugins = ", ".join(form.plugins) or "none"
        self.query_one("#plugin-section", FoldedFields).show_summary(plugins + origin)
        values = {
            "packages": str(self.query_one("#packages #label", Static).content),
            "image": form.image_settings,
            "outputs": form.outputs,
            "restarts": form.restarts,
        }
        texts = [f"{name}: {value or 'none'}" for name, value in values.items() if value or name != "image"]
        texts += [label for name, label in FLAGS if name in flags.chosen]
        self.query_one("#more-section", FoldedFields).show_summary(" · ".join(texts))

    @on(Select.Changed, "#provider")
    def _provider_changed(self, event: Select.Changed) -> None:
        """Adapt the number of nodes to the provider. A provider with named machines uses all by default; others need a
        number."""
        if event.value != event.select.value:
            return  # a delayed event about an earlier selection, such as the initial provider
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
    """Return all provider settings that have a field, by field ID."""
    return {id: setting for provider in provider_choices() for id, setting in setting_fields(provider).items()}


def display_path(path: Path) -> str:
    """Return a path relative to the current folder if possible; an example as its name."""
    return script_argument(relative_path(str(path)))
