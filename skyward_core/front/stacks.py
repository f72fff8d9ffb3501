"""Where ranks are, for who shows it: as text, and as an object."""

from __future__ import annotations

from typing import Any

from ..model.stacks import RankStack, Stacks
from ..views.stacks import as_text as as_text
from ..views.stacks import groups, own_frames, verdict, work_of
from ..views.stacks import in_ranges as in_ranges
from ..views.stacks import merged as merged
from ..wire import safe_text

SIGNAL = (
    "They can be asked by a signal, at which each writes down where it is. A call of their code that blocks in native "
    "code may end early with it (EINTR), if that code does not expect signals"
)


def as_json(stacks: Stacks) -> dict[str, Any]:
    """All that is known, fit to be printed."""
    told = {
        "at": stacks.at,
        "run": stacks.run,
        "collectives": verdict(stacks),
        "groups": [
            {
                "ranks": sorted({each.rank for each in group.stacks}),
                "collective": group.collective.name if group.collective else None,
                "frames": [list(frame) for frame in group.frames],
                "said": group.said,
            }
            for group in groups(stacks)
        ],
        "ranks": [_rank(each) for each in stacks.ranks],
    }
    shown: dict[str, Any] = safe_text.value(told)
    return shown


def _rank(stack: RankStack) -> dict[str, Any]:
    thread = work_of(stack)
    return {
        "rank": stack.rank,
        "number": stack.number,
        "node": stack.node,
        "pid": stack.pid,
        "at": stack.at,
        "runs": list(stack.runs),
        "how": stack.how,
        "why": stack.why,
        "frames": [list(frame) for frame in own_frames(thread.frames)] if thread else [],
        "threads": [
            {
                "name": each.name,
                "child": each.child,
                "holds_gil": each.holds_gil,
                "frames": [list(frame) for frame in each.frames],
            }
            for each in stack.threads
        ],
    }
