"""Python versions matched against ``requires-python``."""

from __future__ import annotations

import re

MIN_PYTHON = (3, 11)  # that our own code runs on
MAX_MINOR = MAX_PATCH = 40  # of versions that may exist

VersionNumbers = tuple[int, ...]


class VersionError(ValueError):
    """Text that is not a version specifier."""


def parse_version(version: str) -> VersionNumbers:
    """``"3.12.1"`` -> ``(3, 12, 1)``; what is no number ends it."""
    found = re.match(r"\d{1,9}(\.\d{1,9})*", version)  # int() refuses thousands of digits
    return tuple(map(int, found[0].split("."))) if found else ()


def satisfies(version: str, wanted: str) -> bool:
    """Check whether a version of Python is among those wanted.

    Args:
        version: Such as "3.12.1"; of one that is known in part, such as "3.12" or "", whether any is.
        wanted: As ``requires-python`` has it: ">=3.12,<3.14"; "" for any.

    Raises:
        VersionError: ``wanted`` is not a version specifier.
    """
    if not wanted.strip():
        return True
    from packaging.specifiers import SpecifierSet  # late: most starts compare no versions

    known = parse_version(version)
    possible = [known] if len(known) > 2 else [(*known, patch) for patch in range(MAX_PATCH)]
    try:
        specifiers = SpecifierSet(wanted)
        found = any(specifiers.contains(".".join(map(str, each)), prereleases=True) for each in possible)
    except ValueError as error:
        raise VersionError(f'{wanted!r:.80} is not a version of Python; write it as in ">=3.12,<3.14"') from error
    return found or not known


def is_satisfiable(wanted: str) -> bool:
    """Check whether a version of Python may exist that is wanted, and that our own code runs on."""
    minors = [*((3, minor) for minor in range(MIN_PYTHON[1], MAX_MINOR)), *((4, minor) for minor in range(MAX_MINOR))]
    return any(satisfies(f"{major}.{minor}", wanted) for major, minor in minors)
