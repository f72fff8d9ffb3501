"""Where a project ends: which folders above one are of the same project."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..store.user_files import exists, expanded, resolved

PROJECT = "pyproject.toml"
REPOSITORY = ".git"


def up_to_project(folder: Path) -> Iterator[Path]:
    """A folder and those above it, to the one with the repository, else with the project's file, else to the person's
    home: what lies there is about no project. What is installed is of none either."""
    if "site-packages" in folder.parts:
        yield folder
        return
    above = [folder, *folder.parents]
    marked = [each for mark in (REPOSITORY, PROJECT) for each in above if exists(each / mark)]
    own = resolved(expanded("~"))
    for each in above:
        if each == own and each != folder:
            return
        yield each
        if marked and each == marked[0]:
            return
