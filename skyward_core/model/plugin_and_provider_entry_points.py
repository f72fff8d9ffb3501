"""Plugins and providers that installed packages declare by entry points."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from skyward_core.model.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def load_entry_points(group: str, ours: Collection[str]) -> dict[str, list[EntryPoint]]:
    """What the installed packages declare, by name: several where packages are at odds.

    Args:
        group: of entry points, such as ``skyward.plugins``.
        ours: names that no package can declare anew: none may hide one of ours.
    """
    from importlib.metadata import entry_points  # it takes as long to load as the rest of a start

    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=group):
        if point.name not in ours:
            found.setdefault(point.name, []).append(point)
    return found


def resolve_entry_point(kind: str, points: Sequence[EntryPoint]) -> EntryPoint:
    """What a name stands for.

    Args:
        kind: what it is, for people: "plugin".
        points: all that is declared by that name.

    Raises:
        UsageError: several packages declare it.
    """
    if len(points) > 1:
        packages = " and ".join(sorted(describe_package(each) for each in points))
        raise UsageError(
            f"{kind} {points[0].name!r} is declared by {packages}: uninstall all but one of these packages"
        )
    return points[0]


def describe_package(point: EntryPoint) -> str:
    """The package that declares it, and what of it."""
    return f"{point.dist.name if point.dist is not None else 'a package without a name'} ({point.value})"
