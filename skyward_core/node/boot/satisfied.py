"""Which requirements the interpreter that runs this does not meet, by the metadata of what is installed.

Nothing is imported of what is asked for. Run by hosts in the interpreter in question, and by the client in its own.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


def lacking(requirements: Sequence[str]) -> list[str]:
    """Those that are not met; all of them where it cannot be told. Of one that is no more than a name, or a name in one
    version, it mostly can.

    Args:
        requirements: as pip takes them.
    """
    told = {text: _is_met(text) for text in requirements}
    unsure = [text for text, met in told.items() if met is None]
    missing = _missing_of(unsure) if unsure else set()
    return [text for text in requirements if told[text] is False or text in missing]


def _missing_of(requirements: Sequence[str]) -> set[str]:
    """What is lacking of those that only a package can judge that knows requirements, which takes long to import."""
    packaging: Any
    try:
        from packaging import requirements as packaging
    except ImportError:
        try:
            from pip._vendor.packaging import requirements as packaging
        except ImportError:
            return set(requirements)
    return {text for text in requirements if _lacking(packaging, text, [], set())}


def _is_met(text: str) -> bool | None:
    """Whether that is so; None where only such a package can tell."""
    from .markers import holds  # only a lock has many

    plain, _, marker = text.partition(";")
    if marker and (needed := holds(marker)) is not True:
        return True if needed is False else None
    name, _, version = (each.strip() for each in plain.partition("=="))
    if not _NAME.fullmatch(name):
        return None
    try:
        return True if version in ("", metadata.version(name)) else None
    except metadata.PackageNotFoundError:
        return False


def _lacking(
    packaging: Any, text: str, extras: Sequence[str], seen: set[tuple[str, tuple[str, ...]]]
) -> list[str]:
    try:
        wanted = packaging.Requirement(text)
    except packaging.InvalidRequirement:
        return [text]
    if wanted.marker and not any(wanted.marker.evaluate({"extra": each}) for each in (extras or [""])):
        return []
    asked = wanted.name, tuple(sorted(wanted.extras))
    if asked in seen:
        return []
    seen.add(asked)
    try:
        found = metadata.distribution(wanted.name)
    except metadata.PackageNotFoundError:
        return [text]
    if wanted.url or not wanted.specifier.contains(found.version, prereleases=True):
        return [text]
    return [
        each
        for other in found.requires or []
        if "extra" in other and wanted.extras
        for each in _lacking(packaging, other, sorted(wanted.extras), seen)
    ]


def main() -> None:
    """Requirements come on standard input as JSON, and the answer goes to standard output."""
    sys.stdout.write(json.dumps(lacking(json.load(sys.stdin))))
