"""What a launch can begin with, a line each: launches of late and the packaged examples."""

from __future__ import annotations

from pathlib import Path

from textual.content import Content

from skyward_core.front.scripts import missing_of
from skyward_core.model.errors import ScriptError
from skyward_core.wire.safe_text import field

from .launch_form import Form
from .packaged import about, examples, named
from .words import one_line

RECENT = 8  # launches shown


def recent_row(form: Form) -> Content:
    """An earlier launch in a line."""
    script = named(form.script)
    called = script if script != form.script else Path(script).name
    label = f"  {called}:{form.function}  " if form.function else f"  {called}  "
    return Content.assemble(field(label), (field(one_line(form.arguments)), "$muted"))


def example_row(path: Path, lacks: str = "") -> Content:
    """A packaged example in a line, with what it lacks."""
    return Content.assemble(f"  {path.stem:<12}", (lacks, "$text-warning"), (about(path), "$muted"))


def lacking_of_examples() -> dict[Path, str]:
    """What each needs and cannot find here, in words; this may start a Python."""
    return {path: _lacks(path) for path in examples()}


def _lacks(path: Path) -> str:
    try:
        lacking = missing_of(path)
    except ScriptError:  # whoever picks it is told
        return ""
    return f"needs {', '.join(lacking)}  " if lacking else ""
