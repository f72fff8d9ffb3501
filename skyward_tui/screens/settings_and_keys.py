"""Screen that shows the user's settings and keys, and changes them."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from textual import events, work
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static

from skyward_core.client import user_settings_and_app_state as settings
from skyward_core.model.errors import SkywardError
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_tui.dialogs.basic_dialogs import Dialog
from skyward_tui.screens.base_screen import ListScreen
from skyward_tui.shutdown_and_daemon_threads import run_in_daemon_thread
from skyward_tui.text.error_hint_text import format_error
from skyward_tui.text.text_width_tables_and_ascii import clip, fit_width
from skyward_tui.ui.actions import SCOPES, Action, actions_in, bindings, resolve_commands, resolve_keymap
from skyward_tui.ui.themes import SKYWARD, read_style_sheet
from skyward_tui.widgets.screen_frame_and_replay_line import Breadcrumbs, Panel
from skyward_tui.widgets.virtual_list import CursorList, Part

if TYPE_CHECKING:
    from skyward_core.client.user_settings_and_app_state import UserSetting


_NAME, _VALUE = 36, 24  # widths in cells of the columns with names and values
_NARROW_NAME, _NARROW_VALUE, _ROOMY = 24, 16, 100


@dataclass(frozen=True)
class SettingRow:
    """Row with a setting or a key, or a heading.

    Attributes:
        name: Name with its table, such as ``app.theme``; "" for a heading.
        shown: Displayed value; for a heading, its text.
        help: Description.
        is_own: Whether the user has set the value.
        remark: Reason why the user's value is not in effect, or "".
    """

    name: str
    shown: str
    help: str = ""
    is_own: bool = False
    remark: str = ""


class SettingList(CursorList[SettingRow]):
    """List of settings with descriptions."""

    @property
    def chosen(self) -> SettingRow | None:
        chosen = super().chosen
        return chosen if chosen is not None and chosen.name else None

    def row_id(self, row: SettingRow) -> str:
        return row.name

    def update(self, rows: Sequence[SettingRow], note: str) -> None:
        """Show rows. The cursor stays on the same setting.

        Args:
            note: Text shown if there are no rows.
        """
        self.note = note
        self.set_rows(rows)
        self._skip_headings(1)
        self.refresh()

    def required_range(self) -> range:
        heading = self.cursor > 0 and not self.rows[self.cursor - 1].name
        return range(self.cursor - heading, self.cursor + 1)

    def row(self, index: int, width: int) -> Content:
        row = self.rows[index]
        return super().row(index, width) if row.name else Content.styled(clip(row.shown, width), "bold")

    def parts(self, row: SettingRow, width: int) -> Iterator[Part]:
        name, cell = (_NAME, _VALUE) if width >= _ROOMY else (_NARROW_NAME, _NARROW_VALUE)
        value_style = ("$text-error" if row.remark else "$text-accent") if row.is_own else "$muted"
        yield f" {fit_width(row.name, name)} ", ""
        yield f"{fit_width(row.shown, cell)} ", value_style
        room = max(0, width - name - cell - 4)
        yield clip(row.remark or row.help, room), "$text-error" if row.remark else "$muted"

    def action_step(self, rows: int) -> None:
        super().action_step(rows)
        self._skip_headings(1 if rows > 0 else -1)

    def _skip_headings(self, step: int) -> None:
        """Move the cursor from a heading to a setting. The first row is always a heading."""
        if self.rows and not self.rows[self.cursor].name:
            self.cursor = min(max(1, self.cursor + step), len(self.rows) - 1)


_TABLES = {"app": "Appearance", "notify": "Notifications"}
_FILE_ONLY = ("commands", "columns")  # tables that the user changes in the file
_COMMANDS = 'Bind commands to keys in [commands]: nvitop = { key = "f7", command = "ssh -t {pool} nvitop" }'
_COLUMNS = 'Add columns to the list of runs in [columns]: runs = "lr, val_loss"'


class _KeyPrompt(Static, can_focus=True):
    """Text widget that has the focus, so that no button handles the pressed key."""


class KeyScreen(Dialog[str | None]):
    """Dialog that waits for a key. Returns Textual's name of the key; escape returns None, and so cannot be assigned.

    Args:
        doing: Description of the action that the key is for.
    """

    heading = "Change key"

    def __init__(self, doing: str) -> None:
        super().__init__()
        self._doing = doing

    def body(self) -> ComposeResult:
        yield _KeyPrompt(f"{self._doing}\n\nPress the new key, or esc to keep the present one.", markup=False)

    def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        self.dismiss(None if event.key == "escape" else event.key)


class SettingsScreen(ListScreen[SettingList]):
    """Screen with the settings in effect. Changes are written to the user's own file."""

    SCOPE = "settings"
    BINDINGS = bindings("settings")
    DEFAULT_CSS = read_style_sheet(__file__)

    def __init__(self) -> None:
        super().__init__(SettingList(id="list"))
        self._given: Mapping[str, Any] = {}
        self._failed = ""
        self._words = ""
        self._is_read = False
        self._writing = asyncio.Lock()

    def body(self) -> ComposeResult:
        yield Panel(self.listed, title="settings")
        yield Panel(Static(id="detail"), id="about", title="details")

    def on_mount(self) -> None:
        self.run_worker(self._load(), group="read")
        self._show()

    def tick(self, now: float) -> None:
        search = [Content.styled(f"/{sanitize_line(self._words)}", "$text-accent")] if self._words else []
        self.query_one(Breadcrumbs).update_trail(["pools", "settings"], search)
        self.query_one("#detail", Static).update(self._detail(self.listed.chosen))
        super().tick(now)

    def _detail(self, row: SettingRow | None) -> Content:
        if row is None:
            return Content("")
        source = "set by you" if row.is_own else "default"
        lines = [(row.name, "bold"), (f"  {row.shown} ({source})\n{row.help}\n", "")]
        if row.remark:
            lines.append((f"✗ {row.remark}\n", "$text-error"))
        return Content.assemble(*lines, (f"in {sanitize_line(str(settings.settings_path()))}", "$muted"))

    # Reading of settings

    async def _load(self) -> None:
        """Read the settings. Uses a thread, because the disk may be slow."""
        try:
            self._given, self._failed = await run_in_daemon_thread(settings.user_values), ""
        except (SkywardError, OSError) as error:
            self._given, self._failed = {}, format_error(error)
        self._is_read = True
        if self.has_widgets:
            self._show()

    def _show(self) -> None:
        words = self._words.casefold()
        rows: list[SettingRow] = []
        for heading, section in self._all_rows():
            matching = [row for row in section if words in f"{row.name} {row.help} {row.shown}".casefold()]
            rows += [SettingRow("", heading), *matching] if matching else []
        note = f"no setting matches {sanitize_line(self._words)}" if self._words else "reading the settings …"
        if self._failed:
            note = f"✗ {self._failed}"
        self.listed.update(rows if self._is_read and not self._failed else [], note)
        self.tick(self.app.clock())

    def _all_rows(self) -> Iterator[tuple[str, list[SettingRow]]]:
        refused = self.app.user_settings.refused
        for table, heading in _TABLES.items():
            yield heading, [self._row(each, refused) for each in settings.SETTINGS if each.name.startswith(f"{table}.")]
        yield "Own commands and columns (in the file)", self._own_rows(refused)
        requested = {id.removeprefix("keys."): keys for id, keys in self._given.items() if id.startswith("keys.")}
        _, wrong = resolve_keymap({id: keys for id, keys in requested.items() if isinstance(keys, str)})
        for scope, heading in SCOPES.items():
            rows = [self._key_row(each, requested, (*wrong, *refused)) for each in actions_in(scope)]
            yield f"Keys: {heading}", rows

    def _own_rows(self, refused: tuple[str, ...]) -> list[SettingRow]:
        """Return the user's commands and columns; without commands, an example."""
        own = self.app.user_settings
        wrong = resolve_commands(own.commands, self.app.keys)[1]
        rows = list[SettingRow]()
        for each in own.commands:
            name, key, words = map(sanitize_line, (f"commands.{each.name}", each.key, shlex.join(each.words)))
            rows.append(SettingRow(name, key, words, True, _remark(name, wrong)))
        columns = sanitize_line(", ".join(own.columns))
        return [
            *(rows or [SettingRow("commands", "none", _COMMANDS)]),
            SettingRow("columns.runs", columns or "none", _COLUMNS, bool(columns), _remark("columns.runs", refused)),
        ]

    def _row(self, setting: UserSetting, refused: tuple[str, ...]) -> SettingRow:
        value = self._given.get(setting.name, setting.default)
        shown = str(value).lower() if isinstance(value, bool) else sanitize_line(f"{value}")
        unit = {"seconds": "s", "megabytes": "MB"}.get(setting.kind)
        if unit and isinstance(value, int | float) and not isinstance(value, bool):
            shown = f"{value:g} {unit}"
        empty = SKYWARD.name if setting.kind == "theme" else "none"
        is_own = setting.name in self._given
        return SettingRow(setting.name, shown or empty, setting.help, is_own, _remark(setting.name, refused))

    def _key_row(self, action: Action, requested: Mapping[str, Any], refused: tuple[str, ...]) -> SettingRow:
        name = f"{settings.KEYS_TABLE}.{action.id}"
        shown = "  ".join(action.shown_keys(self.app.keys))
        return SettingRow(name, shown, action.help, action.id in requested, _remark(name, refused))

    # Changes of settings

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        chosen = self.listed.chosen
        if action in ("change", "forget"):
            return (
                chosen is not None and not chosen.name.startswith(_FILE_ONLY) and (action == "change" or chosen.is_own)
            )
        return True

    @work(group="edit", exclusive=True)
    async def action_change(self) -> None:
        if (row := self.listed.chosen) is None:
            return
        table, _, id = row.name.partition(".")
        if table == settings.KEYS_TABLE:
            return await self._change_key(id, row)
        (setting,) = (each for each in settings.SETTINGS if each.name == row.name)
        now = self._given.get(row.name, setting.default)
        if setting.kind == "flag":
            # The present value is read only when the change is made, so that a quick second key press reverses the
            # first.
            return self._edit(
                lambda: settings.change(row.name, not self._given.get(row.name, setting.default)), row.name
            )
        if (text := await self._ask_value(setting, row, now)) is not None:
            self._edit(lambda: settings.change(row.name, _value(setting, text)), row.name)

    async def _ask_value(self, setting: UserSetting, row: SettingRow, now: Any) -> str | None:
        if setting.kind == "theme":
            from skyward_tui.dialogs.pickers import ThemePicker

            return await self.app.push_screen_wait(ThemePicker(sorted(self.app.available_themes), self.app.theme))
        text = f"{now:g}" if isinstance(now, float) else sanitize_line(f"{now}")
        return await self.app.ask(f"{row.name} (esc: keep)", text)

    async def _change_key(self, id: str, row: SettingRow) -> None:
        if (key := await self.app.push_screen_wait(KeyScreen(row.help))) is None:
            return
        _, refused = resolve_keymap({**self.app.user_settings.keys, id: key})
        if reason := [each for each in refused if each.startswith(f"{settings.KEYS_TABLE}.{id}:")]:
            return self.flash(reason[0], "error")
        self._edit(partial(settings.change, row.name, key), row.name)

    def action_forget(self) -> None:
        if (row := self.listed.chosen) is not None:
            self._edit(partial(settings.reset, row.name), row.name)

    def _edit(self, change: Callable[[], None], name: str) -> None:
        # The worker belongs to the app, so that the change is made and errors are shown even if the user leaves this
        # screen.
        self.app.run_worker(self._write(change, name), group="settings", exclusive=False)

    async def _write(self, change: Callable[[], None], name: str) -> None:
        async with self._writing:
            try:
                await run_in_daemon_thread(change)
                own = await run_in_daemon_thread(settings.load_user_settings)
            except (SkywardError, OSError) as error:
                prefix = f"{name} is unchanged: " if isinstance(error, OSError) else ""
                return self.app.flash(prefix + format_error(error), "error")
            self.app.apply_settings(own)
            await self._load()
        row = next((row for row in self.listed.rows if row.name == name), None)
        if row is not None and self.has_widgets:
            self.flash(f"{name}: {row.remark or row.shown}", "error" if row.remark else "done")

    @work(group="edit", exclusive=True)
    async def action_find(self) -> None:
        self._words = await self.app.ask("Show settings with these words", self._words) or ""
        self._show()

    def action_back(self) -> None:
        if self._words:
            self._words = ""
            self._show()
        else:
            self.dismiss()


def _value(setting: UserSetting, text: str) -> str | float:
    """Convert typed text to the type of a setting. Returns text that is not a valid number unchanged, so that it is
    rejected."""
    with suppress(ValueError):
        return float(text) if setting.kind in ("seconds", "megabytes") else text
    return text


def _remark(name: str, refused: Iterable[str]) -> str:
    """Return the reason why a setting is not in effect, or ""."""
    for each in refused:
        _, is_of_it, reason = each.partition(f": {name} is ignored: ")
        if is_of_it:
            return reason
        if each.startswith(f"{name}: "):
            return each[len(name) + 2 :]
    return ""
