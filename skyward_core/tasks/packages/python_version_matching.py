"""Python versions matched against ``requires-python``."""

from __future__ import annotations

import re

MIN_PYTHON = (3, 11)  # oldest version that runs this library
MAX_MINOR = MAX_PATCH = 40  # largest minor and patch numbers that are assumed to exist

VersionNumbers = tuple[int, ...]


class VersionError(ValueError):
    """Text that is not a version specifier."""


def parse_version(version: str) -> VersionNumbers:
    """Return the numbers of a version, up to the first part that is not a number: "3.12.1" becomes ``(3, 12, 1)``."""
    found = re.match(r"\d{1,9}(\.\d{1,9})*", version)  # int() refuses thousands of digits
    return tuple(map(int, found[0].split("."))) if found else ()


def satisfies(version: str, specifier: str) -> bool:
    """Check whether a Python version matches a version specifier.

    Args:
        version: Such as "3.12.1". For a partial version, such as "3.12" or "", check whether any full version matches.
        specifier: Specifier in ``requires-python`` syntax, such as ">=3.12,<3.14"; "" for any.

    Raises:
        VersionError: If ``specifier`` is not a version specifier.
    """
    if not specifier.strip():
        return True
    from packaging.specifiers import SpecifierSet  # imported late: most starts compare no versions

    known = parse_version(version)
    possible = [known] if len(known) > 2 else [(*known, patch) for patch in range(MAX_PATCH)]
    try:
        specifiers = SpecifierSet(specifier)
        found = any(specifiers.contains(".".join(map(str, each)), prereleases=True) for each in possible)
    except ValueError as error:
        raise VersionError(
            f'{specifier!r:.80} is not a Python version specifier. Write it as in ">=3.12,<3.14"'
        ) from error
    return found or not known


def is_satisfiable(specifier: str) -> bool:
    """Check whether any Python version that runs this library can match a specifier."""
    minors = [*((3, minor) for minor in range(MIN_PYTHON[1], MAX_MINOR)), *((4, minor) for minor in range(MAX_MINOR))]
    return any(satisfies(f"{major}.{minor}", specifier) for major, minor in minors)
