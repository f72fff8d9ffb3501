"""Root folder of a project and the Python versions it accepts."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from skyward_core.util.user_files import exists, expand_user, resolve_path

PROJECT_FILE = "pyproject.toml"
REPOSITORY_FOLDER = ".git"


def folders_up_to_project(folder: Path) -> Iterator[Path]:
    """A folder and those above it, to the one with the repository, else with the project's file, else to the person's
    home: what lies there is about no project. What is installed is of none either."""
    if "site-packages" in folder.parts:
        yield folder
        return
    above = [folder, *folder.parents]
    marked = [each for mark in (REPOSITORY_FOLDER, PROJECT_FILE) for each in above if exists(each / mark)]
    own = resolve_path(expand_user("~"))
    for each in above:
        if each == own and each != folder:
            return
        yield each
        if marked and each == marked[0]:
            return


MIN_PYTHON = (3, 11)  # that our own code runs on
MAX_PATCH = 40
_CLAUSE = re.compile(r"(===|~=|==|!=|<=|>=|<|>)\s*v?(\d+(?:\.\d+)*)(\.\*)?")

VersionNumbers = tuple[int, ...]
_COMPARISONS: dict[str, Callable[[VersionNumbers, VersionNumbers], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class VersionError(ValueError):
    """What is written makes no sense; says so in words."""


def parse_version(version: str) -> VersionNumbers:
    """``"3.12.1"`` -> ``(3, 12, 1)``; what is no number ends it."""
    found = re.match(r"\d{1,9}(\.\d{1,9})*", version)  # int() refuses thousands of digits
    return tuple(map(int, found[0].split("."))) if found else ()


def satisfies(version: str, wanted: str) -> bool:
    """Whether a version is among those wanted.

    Args:
        version: such as "3.12.1"; of one that is known in part, such as "3.12" or "", whether any is.
        wanted: as ``requires-python`` has it: ">=3.12,<3.14"; "" for any.

    Raises:
        VersionError: ``wanted`` is no such text.
    """
    clauses = [clause.strip() for clause in wanted.split(",") if clause.strip()]
    known = parse_version(version)
    if not known:
        for clause in clauses:
            _satisfies_clause(MIN_PYTHON, clause)  # refuses what is not a version
        return True
    possible = [known] if len(known) > 2 else [(*known, patch) for patch in range(MAX_PATCH)]
    return any(all(_satisfies_clause(each, clause) for clause in clauses) for each in possible)


def is_satisfiable(wanted: str) -> bool:
    """Whether there may be a version that is wanted and that our own code runs on."""
    minors = [*((3, minor) for minor in range(MIN_PYTHON[1], 100)), *((4, minor) for minor in range(100))]
    return any(satisfies(f"{one}.{two}", wanted) for one, two in minors)


def _satisfies_clause(version: VersionNumbers, clause: str) -> bool:
    found = _CLAUSE.fullmatch(clause)
    if found is None or (found[3] and found[1] not in ("==", "!=")) or (found[1] == "~=" and "." not in found[2]):
        raise VersionError(f'{clause!r} is no version of Python; write it as in ">=3.12,<3.14"')
    sign, wanted = found[1], parse_version(found[2])
    if sign == "~=":
        return version[: len(wanted) - 1] == wanted[:-1] and _pad(version) >= _pad(wanted)
    if sign in ("==", "===", "!="):
        same = version[: len(wanted)] == wanted if found[3] else _pad(version) == _pad(wanted)
        return same is (sign != "!=")
    return _COMPARISONS[sign](_pad(version), _pad(wanted))


def _pad(version: VersionNumbers) -> VersionNumbers:
    return (*version, 0, 0, 0)[: max(3, len(version))]
