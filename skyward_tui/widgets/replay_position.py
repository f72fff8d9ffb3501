"""Status line of a replay with position, speed and keys."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from textual.content import Content

from skyward_core.client.replay_session import Playback, PlaybackState
from skyward_tui.text.number_and_time_format import duration
from skyward_tui.text.text_width_and_tables import clip
from skyward_tui.ui.actions import actions_in, first_key
from skyward_tui.widgets.header_and_hints import Chrome

LEAST_BAR, MOST_BAR = 10, 40
_DATED = 120  # cells; a narrower line omits the recorded date


class ReplayLine(Chrome):
    """Status line above the hints, always visible during a replay."""

    def show(self, playback: Playback, keymap: Mapping[str, str]) -> None:
        """Show the playback's position."""
        self.show_line(line(playback.state(), playback.note, keymap, self.size.width))


def line(state: PlaybackState, note: str, keymap: Mapping[str, str], width: int) -> Content:
    """Return the status line, such as `` REPLAY ▶ x4  1:07/2:30  ━━━━●──✗──  p pause  , . 10 s …``.

    The note and the keys use the remaining width.
    """
    parts: list[tuple[str, str]] = [
        (" REPLAY ", "bold $text-warning"),
        (_state_text(state), "$text-success" if state.playing else "$text-warning"),
        (
            f" x{state.speed:g}  {duration(state.now - state.start)}/{duration(state.end - state.start)}",
            "bold",
        ),
    ]
    if width >= _DATED:
        parts.append((f"  {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(state.now))}", "$muted"))
    room = width - sum(len(text) for text, _ in parts)
    if note:
        shown = clip(f"  {note}", max(0, room - LEAST_BAR - 4))
        parts.append((shown, "$text-warning"))
        room -= len(shown)
    keys = list(_keys(state, keymap))
    fitting: list[tuple[str, str]] = []
    for key, label in keys:
        if sum(len(text) for text, _ in fitting) + len(key) + len(label) + 3 > room - LEAST_BAR - 4:
            break
        fitting += [(f" {key} ", "bold $text-accent"), (f"{label} ", "$muted")]
    bar = min(MOST_BAR, room - sum(len(text) for text, _ in fitting) - 4)
    return Content.assemble(*parts, "  ", *_bar(state, bar), "  ", *fitting)


def _state_text(state: PlaybackState) -> str:
    if state.behind:
        return "… seeking"
    if state.playing:
        return "▶"
    return "■ end" if state.now >= state.end else "‖ paused"


def _bar(state: PlaybackState, width: int) -> Iterable[tuple[str, str]]:
    """Yield the cells of the progress bar, with marks for the position and the first failure."""
    if width < 3:
        return
    length = max(state.end - state.start, 1e-9)

    def cell_at(at: float) -> int:
        return min(width - 1, max(0, int((at - state.start) / length * width)))

    here = cell_at(state.now)
    failure = None if state.failure is None else cell_at(state.failure)
    for cell in range(width):
        if cell == here:
            yield "●", "bold $text-accent"
        elif cell == failure:
            yield "✗", "bold $text-error"
        else:
            yield ("━", "$text-accent") if cell < here else ("─", "$muted")


def _keys(state: PlaybackState, keymap: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Yield keys and labels of replay actions, the most useful first."""
    for action in actions_in("replay"):
        if not action.label or (action.id == "replay.failure" and state.failure is None):
            continue
        partner = f" {first_key(action.partner, keymap)}" if action.partner else ""
        label = "pause" if state.playing and action.id == "replay.pause" else action.label
        yield action.shown_keys(keymap)[0] + partner, label
