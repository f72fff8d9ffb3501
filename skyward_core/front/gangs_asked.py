"""Whether what a launch says of a sweep's gangs makes sense, whatever pool it is for."""

from __future__ import annotations

from collections.abc import Mapping

from ..model.errors import UsageError
from ..model.wrong_field import of_field

WAYS: Mapping[str, str] = {"gang": "every rank", "gang_nodes": "some nodes", "gang_ranks": "some ranks"}
"""Fields of a request that have each combination run by a gang, and on what."""


def check_asked(said: Mapping[str, object], options: Mapping[str, str], *, sweep: bool, detach: bool) -> None:
    """See whether it does.

    Args:
        said: what these fields say.
        options: what fields are called on a command line.
        sweep, detach: what the request says of these.

    Raises:
        UsageError: it does not; ``field`` says which.
    """
    asked = [name for name in WAYS if said[name] is not None and said[name] is not False]
    if not asked:
        return
    name, *others = reversed(asked)
    what = f"{options[name]} has each combination of a sweep run on {WAYS[name]}, and"
    with of_field(name):
        many, of = said[name], name.removeprefix("gang_")
        if name != "gang" and (not isinstance(many, int) or isinstance(many, bool) or many < 1):
            raise UsageError(f"each combination runs on a number of {of}, 1 at least, not on {many!r:.40}")
        if not sweep:
            raise UsageError(f"{what} goes with --sweep")
        if detach and name != "gang_ranks":  # of a part of a node's they are handed to nodes beforehand
            raise UsageError(f"{what} needs its client to the end: leave --detach out")
        if others:
            raise UsageError(f"{what} {options[others[0]]} on {WAYS[others[0]]}: leave one of the two out")
