"""Pick the Python that a script is loaded with, of those that are found; or type where it is."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import NamedTuple

from textual import work
from textual.content import Content
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from skyward_core.front.scripts import NoPython, OfferedPython, interpreter_of, known_python, offered
from skyward_core.front.user_files import expanded, is_file
from skyward_core.model.errors import SkywardError
from skyward_core.wire.safe_text import field

from ..ends import beside as in_thread
from ..words import one_line
from .picker import Picker

AT_ONCE = 4  # interpreters that are looked up at a time: their disks may be slow
BY_ITSELF = OfferedPython("", "found for the script")


class _Told(NamedTuple):
    """What is known of an interpreter: its version, why it is offered, what is amiss."""

    version: str
    why: str = ""
    amiss: str = ""


class PythonsScreen(Picker):
    """Returns the path of an interpreter, "" for the one that is found for the script, or None.

    Args:
        script: which one; None where none is named.
    """

    heading = "Pick a Python"
    ENTER = "takes it"
    PLACEHOLDER = "type part of a version or name, or a path"

    def __init__(self, script: Path | None) -> None:
        super().__init__()
        self._script = script
        self._offered = [BY_ITSELF]
        self._told: dict[str, _Told] = {}  # by path
        self._asks = asyncio.Semaphore(AT_ONCE)

    def on_mount(self) -> None:
        self._look()

    @work
    async def _look(self) -> None:
        self._offered += await in_thread(lambda: offered(self._script, os.environ))
        if self.display:
            self.fill(self.query_one(Input).value)
        await asyncio.gather(*map(self._ask, self._offered))

    async def _ask(self, each: OfferedPython) -> None:
        async with self._asks:
            told = self._told[each.path] = await in_thread(lambda: _ask(self._script, each.path))
        if told.amiss and not each.source:
            self._offered.remove(each)  # it is too old, as a rule, and nobody thinks of it
        if not self.display:  # it is being closed
            return
        listed = self.query_one(OptionList)
        if each.path not in (option.id for option in listed.options):
            return
        if each in self._offered:
            listed.replace_option_prompt(each.path, self._row(each))
        else:
            listed.remove_option(each.path)

    def fill(self, typed: str) -> None:
        listed = self.query_one(OptionList)
        listed.clear_options()
        typed = typed.strip()
        for each in self._offered:
            row = self._row(each)
            if typed.lower() in row.plain.lower():
                listed.add_option(Option(row, id=each.path))
        if not listed.option_count:
            listed.add_option(Option(Content(f"  {typed}"), id=str(expanded(typed))))
        listed.action_first()

    def _row(self, each: OfferedPython) -> Content:
        told = self._told.get(each.path, _Told("…"))
        why = told.why or each.source or "installed here"
        behind = (told.amiss, "$text-warning") if told.amiss else (field(each.path), "$muted")
        return Content.assemble(f"  {told.version:<8} {field(why)}  ", behind)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        typed = expanded(event.value.strip())
        if event.value.strip() and is_file(typed):
            self.dismiss(str(typed))
        else:
            self.query_one(OptionList).action_select()

    def take(self, picked: str) -> None:
        self.dismiss(picked)


def _ask(script: Path | None, path: str) -> _Told:
    """Return what files say about an interpreter."""
    try:
        if path:
            return _Told(known_python(path).version or "?")
        if script is None:
            return _Told("")
        found = interpreter_of(script)
        return _Told(found.version, f"{BY_ITSELF.source}: {found.source}")
    except (NoPython, SkywardError) as error:
        return _Told("✗", amiss=field(one_line(str(error))))
