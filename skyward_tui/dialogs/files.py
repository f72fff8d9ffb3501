"""Pick a script: recent launches, the packaged examples, the folder at hand; by keys or by typing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from textual import work
from textual.content import Content
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from skyward_core.front.user_files import entries, expanded, is_dir, is_file, resolved
from skyward_core.wire.safe_text import field

from ..ends import beside as in_thread
from ..launch_form import Form
from ..packaged import examples
from ..starts import RECENT, example_row, lacking_of_examples, recent_row
from .picker import Picker

_MOST = 500  # entries of one folder


class FilesScreen(Picker):
    """Returns the path of a script, or None.

    Args:
        folder: where to begin.
        recent: earlier launches, newest first.

    Attributes:
        again: the launch that was picked, where it was one of these.
    """

    heading = "Pick a script"
    ENTER = "opens"
    PLACEHOLDER = "type part of a name, or a path"

    def __init__(self, folder: Path, recent: Sequence[Form] = ()) -> None:
        super().__init__()
        self.again: Form | None = None
        self._folder = folder
        self._recent = recent
        self._walks = False  # whether the person has opened a folder: what lies there is what is looked for
        self._launches: dict[str, Form] = {}
        self._entries: dict[str, Path] = {}
        self._lacking: dict[Path, str] = {}

    def on_mount(self) -> None:
        self._look_for_packages()

    @work
    async def _look_for_packages(self) -> None:
        """Say what examples need and cannot find here; a Python that hangs is not waited for with the list."""
        self._lacking = await in_thread(lacking_of_examples)
        for key, path in self._entries.items():
            if self._lacking.get(path) and self.display:
                self.query_one(OptionList).replace_option_prompt(key, self._example(path))

    def _example(self, path: Path) -> Content:
        return example_row(path, self._lacking.get(path, ""))

    def fill(self, typed: str) -> None:
        listed = self.query_one(OptionList)
        listed.clear_options()
        self._entries.clear()
        self._launches.clear()
        typed = typed.strip()
        folder, part = self._folder, typed
        if "/" in typed or typed.startswith("~"):
            path = expanded(typed)
            folder, part = (path, "") if typed.endswith("/") else (path.parent, path.name)
            folder = self._folder / folder
        elif not self._walks:
            self._list_recent(part)
            found_examples = [path for path in examples() if part.lower() in path.stem]
            if found_examples:
                self.say("packaged examples")
            for path in found_examples:
                self._add(path, self._example(path))
        self.say(field(str(folder)))
        try:
            found = sorted(entries(folder), key=lambda path: (is_file(path), path.name.lower()))
        except OSError as error:
            listed.add_option(
                Option(Content.styled(f"  {error.strerror or error}", "$text-error"), disabled=True)
            )
            found = []
        if not part:
            self._add(folder.parent, Content("  ../"))
        for path in found[:_MOST]:
            is_folder = is_dir(path)
            wanted = is_folder or path.suffix in (".py", ".yaml", ".yml")
            if wanted and not path.name.startswith((".", "__")) and part.lower() in path.name.lower():
                self._add(path, Content(f"  {field(path.name)}{'/' if is_folder else ''}"))
        if part and not self._entries and is_dir(folder):
            self.say(f"  no script or folder has {part!r} in its name")
        listed.action_first()

    def _list_recent(self, part: str) -> None:
        found = [form for form in self._recent if part.lower() in Path(form.script).name.lower()][:RECENT]
        if found:
            self.say("recent launches")
        for form in found:
            self._launches[str(len(self._entries))] = form
            self._add(Path(form.script), recent_row(form))

    def _add(self, path: Path, label: Content) -> None:
        key = str(len(self._entries))
        self._entries[key] = path
        # A field of the form holds its text as it is, and hands it to the terminal so.
        unfit = str(path) != field(str(path))
        self.query_one(OptionList).add_option(Option(label, id=key, disabled=unfit))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        typed = expanded(event.value.strip())
        if event.value.strip() and is_file(self._folder / typed):
            self.dismiss(str(self._folder / typed))
        else:
            self.query_one(OptionList).action_select()

    def take(self, picked: str) -> None:
        path, self.again = self._entries[picked], self._launches.get(picked)
        if not is_dir(path):
            self.dismiss(str(path))
            return
        self._folder, self._walks = resolved(path), True
        narrow = self.query_one(Input)
        narrow.focus()
        if narrow.value:
            narrow.value = ""
        else:
            self.fill("")
