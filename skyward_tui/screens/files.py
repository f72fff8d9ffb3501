"""Pick a script: the packaged examples, then the folder at hand, by keys or by typing."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path

from textual.content import Content
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from .launch_plan import EXAMPLES
from .picker import Picker

_MOST = 500  # entries of one folder


class FilesScreen(Picker):
    """Returns the path of a script, or None.

    Args:
        folder: where to begin.
    """

    TITLE_TEXT = "Pick a script"
    HINT = "enter opens, type to narrow, esc back"
    PLACEHOLDER = "type part of a name, or a path"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._entries: dict[str, Path] = {}

    def fill(self, typed: str) -> None:
        listed = self.query_one(OptionList)
        listed.clear_options()
        self._entries.clear()
        typed = typed.strip()
        folder, part = self._folder, typed
        if "/" in typed or typed.startswith("~"):
            path = Path(typed).expanduser()
            folder, part = (path, "") if typed.endswith("/") else (path.parent, path.name)
            folder = self._folder / folder
        else:
            examples = [path for path in sorted(EXAMPLES.glob("*.py")) if part.lower() in path.stem]
            if examples:
                listed.add_option(Option(Content.styled("packaged examples", "$muted"), disabled=True))
            for path in examples:
                self._add(path, Content.assemble(f"  {path.stem:<12}", (_about(path), "$muted")))
        listed.add_option(Option(Content.styled(str(folder), "$muted"), disabled=True))
        try:
            found = sorted(folder.iterdir(), key=lambda path: (path.is_file(), path.name.lower()))
        except OSError as error:
            listed.add_option(
                Option(Content.styled(f"  {error.strerror or error}", "$text-error"), disabled=True)
            )
            found = []
        if not part:
            self._add(folder.parent, Content("  ../"))
        for path in found[:_MOST]:
            is_folder = path.is_dir()
            wanted = is_folder or path.suffix == ".py"
            if wanted and not path.name.startswith((".", "__")) and part.lower() in path.name.lower():
                self._add(path, Content(f"  {path.name}{'/' if is_folder else ''}"))
        listed.action_first()

    def _add(self, path: Path, label: Content) -> None:
        key = str(len(self._entries))
        self._entries[key] = path
        self.query_one(OptionList).add_option(Option(label, id=key))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        typed = Path(event.value.strip()).expanduser()
        if event.value.strip() and (self._folder / typed).is_file():
            self.dismiss(str(self._folder / typed))
        else:
            self.query_one(OptionList).action_select()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        path = self._entries[event.option_id or ""]
        if not path.is_dir():
            self.dismiss(str(path))
            return
        self._folder = path.resolve()
        narrow = self.query_one(Input)
        narrow.focus()
        if narrow.value:
            narrow.value = ""
        else:
            self.fill("")


@lru_cache
def _about(path: Path) -> str:
    """The first line of a script's docstring."""
    try:
        return (ast.get_docstring(ast.parse(path.read_bytes())) or "").partition("\n")[0]
    except (OSError, SyntaxError, ValueError):
        return ""
