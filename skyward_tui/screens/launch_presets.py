"""The launch form's keys for presets: which questions are asked, and what is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from skyward_core.model.errors import SkywardError

from ..dialogs.ask import AskScreen, ChoiceScreen
from ..dialogs.presets import PresetsScreen
from ..ends import beside
from ..form_presets import form_of_preset, save
from ..hints import words_of

if TYPE_CHECKING:
    from skyward_core.front.presets import Preset

    from ..app_face import AppFace
    from ..launch_form import Form


async def pick(app: AppFace, filled: Callable[[Form, Sequence[str], str], None]) -> None:
    """Have a preset picked.

    Args:
        filled: takes the form that it makes, what of it is not there any more, in words, and its name.
    """
    found = await _listed(app)
    if found is None:
        return
    screen = PresetsScreen(found)

    def picked(name: str | None) -> None:
        if name is not None and name in screen.presets:
            form, said = form_of_preset(screen.presets[name])
            filled(form, said, name)

    await app.push_screen(screen, picked)


async def ask_to_save(app: AppFace, form: Form, name: str) -> None:
    """Have what the form says saved under a name.

    Args:
        name: of the preset that the form was filled from; "" where it was not.
    """
    found = await _listed(app)
    if found is None:
        return
    taken = {each.name for each in found}

    def save_as(typed: str) -> None:
        app.run_worker(_save(app, typed, form), exclusive=False)

    def named(typed: str | None) -> None:
        if typed is None:
            return
        if typed not in taken or typed == name:
            save_as(typed)
            return
        choices = [("keep", "Keep that one", False), ("replace", "Replace it", True)]
        text = f"There is a preset {typed} already."
        question = ChoiceScreen("Save as preset", text, choices, "keep")
        app.push_screen(question, lambda choice: save_as(typed) if choice == "replace" else None)

    await app.push_screen(AskScreen("Save as preset, in skyward.toml of this folder: its name", name), named)


async def _listed(app: AppFace) -> list[Preset] | None:
    """The presets that there are; None, and why is said, where they cannot be read."""
    from skyward_core.front.presets import presets

    try:
        return await beside(presets)
    except (SkywardError, OSError) as error:
        app.flash(words_of(error), "error")
        return None


async def _save(app: AppFace, name: str, form: Form) -> None:
    try:
        file = await beside(lambda: save(name, form))
    except (SkywardError, OSError) as error:
        app.flash(f"not saved: {words_of(error)}", "error")
    else:
        app.flash(f"saved as preset {name} in {file.name}", "done")
