"""The launch form's choice of packages: what of a script's project says what its ranks have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .current_folder import current_folder

PROJECT = "project"
"""The choice of ``pyproject.toml``, which is looked for and not named."""


def choice_of(field: str, path: str = "") -> str:
    """A choice as a text: which field of a request names the packages, and by which file; "" for none."""
    return field if field in ("", PROJECT) else f"{field} {path}"


def named_by(field: str) -> Callable[[str], str | None]:
    """Reads the file out of a choice, where it is one for that field of a request."""

    def read(choice: str) -> str | None:
        kind, _, path = choice.partition(" ")
        return path if kind == field and path else None

    return read


def choices_for(script: Path | None, chosen: str) -> list[tuple[str, str]]:
    """What can be chosen for a script, as (label, choice): nothing first, then what its project has.

    Args:
        script: None where there is none to look at.
        chosen: what stays in the list, though it may not be there any more.
    """
    from skyward_core.front.scripts import has_own_block, packages_for

    if script is None:
        return [("none named", ""), *_kept(chosen, ())]
    found = [(Path(each.path).name, choice_of(each.field, near(each.path))) for each in packages_for(script)]
    nothing = "its own block" if has_own_block(script) else "none named" if found else "none found"
    return [(nothing, ""), *found, *_kept(chosen, [choice for _, choice in found])]


def _kept(chosen: str, listed: list[str] | tuple[()]) -> list[tuple[str, str]]:
    if not chosen or chosen in listed:
        return []
    return [(Path(chosen.partition(" ")[2]).name or "pyproject.toml", chosen)]


def near(path: str) -> str:
    """The path from here where it is below."""
    folder = current_folder()
    return str(Path(path).relative_to(folder)) if Path(path).is_relative_to(folder) else path
