"""Runs that have nodes, or wait for some, in words and as objects for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .queue_rows import QueueRow
from .words import count, duration

SHOWN = 3  # of those that have nodes that a run waits for


def numbers(nodes: Sequence[int]) -> str:
    """Nodes in their shortest form: 0-2,5."""
    parts: list[list[int]] = []
    for node in sorted(nodes):
        if parts and node == parts[-1][-1] + 1:
            parts[-1].append(node)
        else:
            parts.append([node])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def reason(row: QueueRow, now: float) -> str:
    """Why a run waits; "" where it does not."""
    if not row.waits:
        return ""
    wanted = count(row.wants, "node")
    if row.only:
        wanted = f"node{'s' * (len(row.only) > 1)} {numbers(row.only)}"
    said = f"waits for {wanted}: {row.free} free"
    if row.behind[0]:
        said += f"; {row.behind[1]} ({row.behind[0]}) is before it"
    held = [
        f"{name} ({run}) has node{'s' * (len(nodes) > 1)} {numbers(nodes)} for {duration(max(0.0, now - since))}"
        for run, name, nodes, since in row.holders[:SHOWN]
    ]
    if len(row.holders) > SHOWN:
        held.append(f"{len(row.holders) - SHOWN} more have others")
    if row.gone:
        held.append(f"node{'s' * (len(row.gone) > 1)} {numbers(row.gone)} not ready")
    return said + "".join(f", {each}" for each in held)


def as_json(row: QueueRow, now: float) -> dict[str, Any]:
    """A row for programs."""
    return {
        "run": row.run,
        "name": row.name,
        "state": "waiting" if row.waits else "running",
        "nodes": list(row.nodes),
        "wants": row.wants,
        "only": list(row.only),
        "since": row.since,
        "reason": reason(row, now),
        "behind": row.behind[0],
        "who": row.who,
    }
