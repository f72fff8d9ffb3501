"""What a function is called with: all in one line, what it is for, and a field for each argument."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Static

from skyward_core.wire.safe_text import field

from ..words import one_line
from .argument_fields import ArgumentFields
from .form_fields import line, row
from .saying import say

if TYPE_CHECKING:
    from skyward_core.front.scripts import ArgumentField, FunctionInfo

ARGUMENTS, WORDS = "name=value …", "words of its own, such as --epochs 3"
VARIABLES = "NAME=value …, for the file's envs"
JOB = "a job file: its variables; secrets are asked for when it is launched"
WHOLE = "the main program of every rank; the words are its sys.argv"


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
        from skyward_core.front.scripts import argument_fields

        asked = [] if whole or called is None else argument_fields(called)
        said = WHOLE if whole else ""
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
