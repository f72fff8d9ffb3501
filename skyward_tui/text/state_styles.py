"""Glyph, word and colour of each state, and titled blocks of lines below them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from textual.content import Content

from skyward_tui.text.text_width_tables_and_ascii import clip


class StateStyle(NamedTuple):
    """Glyph, word and style of a state. ``style`` is a Textual content style such as ``$success``."""

    glyph: str
    word: str
    style: str

    @property
    def text(self) -> str:
        return f"{self.glyph} {self.word}"


_UNKNOWN_STYLE = StateStyle("?", "unknown", "$muted")
_STATE_STYLES = {
    # states of pools
    "starting": StateStyle("◌", "starting", "$text-warning"),
    "connecting": StateStyle("◌", "connecting", "$muted"),
    "up": StateStyle("●", "up", "$text-success"),
    "degraded": StateStyle("!", "degraded", "$text-warning"),
    "stopping": StateStyle("◍", "stopping", "$text-warning"),
    "gone": StateStyle("○", "gone", "$muted"),
    "unstarted": StateStyle("✗", "start failed", "$text-error"),
    "unfinished": StateStyle("!", "start incomplete", "$text-error"),
    "unreachable": StateStyle("!", "unreachable", "$text-error"),
    # verdicts about leftovers in cloud accounts
    "expired": StateStyle("◍", "expired", "$text-warning"),
    "left": StateStyle("✗", "leftover", "$text-error"),
    # states of runs
    "done": StateStyle("✓", "done", "$text-success"),
    "failed": StateStyle("✗", "failed", "$text-error"),
    "cancelled": StateStyle("⊘", "cancelled", "$muted"),
    "kept": StateStyle("◍", "retained", "$text-warning"),
    # states of ranks
    "queued": StateStyle("◌", "queued", "$text-warning"),
    "restarting": StateStyle("◌", "restarting", "$text-warning"),
    "waiting": StateStyle("◌", "waiting", "$muted"),
    "importing": StateStyle("◔", "importing", "$text-warning"),
    "joining": StateStyle("◑", "joining", "$text-warning"),
    "running": StateStyle("●", "running", "$text-primary"),
    "paused": StateStyle("◍", "paused", "$text-warning"),
    "saving": StateStyle("◍", "saving", "$text-warning"),
    "returned": StateStyle("✓", "returned", "$text-success"),
    "raised": StateStyle("✗", "raised", "$text-error"),
    "exited": StateStyle("✗", "exited", "$text-error"),
    "lost": StateStyle("!", "lost", "$text-warning"),
    "collateral": StateStyle("⊘", "stopped", "$muted"),
    "idle": StateStyle("·", "idle", "$muted"),
    # kinds of alerts
    "gpu": StateStyle("✗", "GPU", "$text-error"),
    "nan": StateStyle("✗", "NaN", "$text-error"),
    "stall": StateStyle("◌", "stall", "$text-error"),
    "memory": StateStyle("!", "memory", "$text-error"),
    "restarts": StateStyle("!", "restarts", "$text-error"),
    "throttled": StateStyle("!", "throttled", "$text-warning"),
    "straggler": StateStyle("!", "straggler", "$text-warning"),
    "plateau": StateStyle("=", "plateau", "$text-warning"),
    # states of GPUs on shared hosts, and results of host checks
    "free": StateStyle("○", "free", "$text-success"),
    "busy": StateStyle("●", "busy", "$text-warning"),
    "ok": StateStyle("✓", "ok", "$text-success"),
    "warn": StateStyle("!", "warning", "$text-warning"),
    "fail": StateStyle("✗", "failed", "$text-error"),
    # startup phases of nodes
    "requested": StateStyle("◌", "requested", "$text-warning"),
    "connected": StateStyle("◔", "connected", "$text-warning"),
    "synced": StateStyle("◑", "synced", "$text-warning"),
    "installed": StateStyle("◕", "installed", "$text-warning"),
    "ready": StateStyle("●", "ready", "$text-success"),
    "absent": StateStyle("○", "not started", "$muted"),
}

FAILURES = ("raised", "exited", "lost")


def state_style(state: str) -> StateStyle:
    """Return the style of a state of a pool, run, rank or node."""
    return _STATE_STYLES.get(state) or _UNKNOWN_STYLE._replace(word=state or "unknown")


def node_style(phase: str) -> StateStyle:
    """Return the style of a node's phase. In the phase "running", the machine is on, but the node is not ready."""
    return StateStyle("◔", "running", "$text-warning") if phase == "running" else state_style(phase)


def block_room(rows: list[Content], height: int) -> int:
    """Return how many lines :func:`append_block` can append to the rows."""
    return height - len(rows) - (2 if rows else 1)


def append_block(rows: list[Content], title: str, lines: Iterable[str], width: int) -> None:
    """Append a blank line, a title and lines to the rows."""
    if shown := [Content(clip(text, width)) for text in lines]:
        rows += [*([Content("")] if rows else []), Content.styled(title, "$muted"), *shown]
