"""Plugins and providers that installed packages declare as entry points."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from skyward_core.model.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def load_entry_points(group: str, ours: Collection[str]) -> dict[str, list[EntryPoint]]:
    """Return the entry points of installed packages by name. A name has several entry points if packages conflict.

    Args:
        group: Group of entry points, such as ``skyward.plugins``.
        ours: Names that this library defines itself. Packages cannot replace them.
    """
    # Imported late, because the import takes as long as the rest of a program start.
    from importlib.metadata import entry_points

    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=group):
        if point.name not in ours:
            found.setdefault(point.name, []).append(point)
    return found


def resolve_entry_point(kind: str, points: Sequence[EntryPoint]) -> EntryPoint:
    """Return the entry point of a name, which must be the only one.

    Args:
        kind: Noun for the error message: "plugin".
        points: All entry points of the name.

    Raises:
        UsageError: If several packages declare the name.
    """
    if len(points) > 1:
        packages = " and ".join(sorted(describe_package(each) for each in points))
        raise UsageError(
            f"{kind} {points[0].name!r} is declared by {packages}. Uninstall all but one of these packages."
        )
    return points[0]


def describe_package(point: EntryPoint) -> str:
    """Return a text that names the package of an entry point and the object that it declares."""
    return f"{point.dist.name if point.dist is not None else 'a package without a name'} ({point.value})"
