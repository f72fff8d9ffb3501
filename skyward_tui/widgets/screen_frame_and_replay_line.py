"""Parts of every screen: breadcrumbs, hint bar, status line of a replay, notice on small terminals, titled panel."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Size
from textual.reactive import reactive
from textual.style import Style
from textual.widget import Widget
from textual.widgets import Input, Static

from skyward_core.util.terminal_safe_text import sanitize_in_place
from skyward_tui.text.number_time_and_run_state_format import duration
from skyward_tui.text.text_width_tables_and_ascii import clip
from skyward_tui.ui.actions import actions_in, with_partner
from skyward_tui.ui.themes import read_style_sheet

if TYPE_CHECKING:
    from skyward_core.client.replay_session import Playback, PlaybackState

MIN_WIDTH, MIN_HEIGHT = 60, 15
LEAST_CRUMB = 8  # minimum width in cells to which the name of the current screen is cut
FLASH_SECONDS = 6.0
_EMPTY = Content("")
_FLASHES = {
    "info": ("", "$text-primary"),
    "done": ("✓ ", "$text-success"),
    "warning": ("! ", "$text-warning"),
    "error": ("✗ ", "$text-error"),
}


class Chrome(Static):
    """Base class of one-line widgets around the content of a screen."""

    DEFAULT_CSS = read_style_sheet(__file__, "chrome")
    SCOPED_CSS = False

    def show_line(self, line: Content) -> None:
        """Show a line without a layout pass. Does nothing if the line is already shown."""
        if not isinstance(self.content, Content) or not line.is_same(self.content):
            self.update(line, layout=False)


class Breadcrumbs(Chrome):
    """Header line such as ``pools › NAME › run`` on the left, with the state on the right.

    Args:
        mark: Word after the breadcrumbs, such as "read-only"; "" for none.
    """

    def __init__(self, mark: str = "") -> None:
        super().__init__()
        self._mark = f"  [{mark}]" if mark else ""
        self._shown: object = None
        self.trail: list[str] = []

    def update_trail(self, trail: Iterable[str], parts_of_state: Iterable[Content] = ()) -> None:
        """Show the breadcrumbs, and as many parts of the state as fit.

        Args:
            trail: Names of the screens, the current one last.
            parts_of_state: Parts of the state, the most important first.
        """
        trail, states = list(trail), [state for state in parts_of_state if state]
        self.trail = trail
        shown = (trail, [state.plain for state in states], self.size.width)
        if shown == self._shown:
            return
        self._shown = shown
        *above, here = trail
        parts: list[Content | str] = [" "]
        for place, crumb in enumerate(above, 1):
            click = Style.from_meta({"@click": f"screen.go_back({place})"})
            parts += [Content.styled(crumb, "$muted").stylize(click), Content.styled(" › ", "$muted")]
        least = states[0].cell_length if states else 0
        crumbs = [
            [" ", *parts[place:], (here, "bold"), (self._mark, "$warning")] for place in range(1, len(parts) + 1, 2)
        ]
        trails = [Content.assemble(*each) for each in crumbs]
        # If the most important part of the state does not fit beside all breadcrumbs, leave out breadcrumbs of the
        # upper levels, and cut a long name.
        room = self.size.width - 3 - least
        cut = trails[-1].truncate(room, ellipsis=True) if room >= LEAST_CRUMB else trails[0]
        left = next((each for each in trails if each.cell_length <= room), cut)
        room = self.size.width - left.cell_length - 3
        ends = accumulate(state.cell_length + 2 for state in states)
        status = Content("  ").join(state for state, end in zip(states, ends, strict=True) if end - 2 <= room)
        gap = max(2, self.size.width - left.cell_length - status.cell_length - 1)
        self.update(Content.assemble(left, " " * gap, status), layout=False)

    def on_resize(self) -> None:
        self._shown = None


class MessageLine(Chrome):
    """Message above the hint line for a few seconds. It covers the bottom border of the content, never the hints."""

    def __init__(self) -> None:
        super().__init__()
        self._until = 0.0
        self._holds: Callable[[], bool] = lambda: True
        self.display = False

    def flash(self, text: str, kind: str, until: float, holds: Callable[[], bool]) -> None:
        """Show a message until a time, or until ``holds`` returns False."""
        self._until, self._holds, self.display = until, holds, True
        glyph, style = _FLASHES[kind]
        self.show_line(Content.assemble(" ", (glyph, style), (text, style)))

    def has_message(self, now: float) -> bool:
        """Check whether a message is currently shown."""
        return self.display and now < self._until

    def hide_old(self, now: float) -> None:
        """Hide the message if its time is over, or if it no longer applies."""
        if self.display and (now >= self._until or not self._holds()):
            self.display = False


class HintBar(Chrome):
    """Line with hints for the most useful keys."""

    def show(self, hints: Iterable[Hint], last: Iterable[Hint]) -> None:
        """Show hints for keys.

        Args:
            hints: Hints, the most useful first; as many as fit are shown.
            last: Hints that are always shown.
        """
        first, kept = ([_hint(*each) for each in some] for some in (hints, last))
        room = self.size.width - sum(hint.cell_length for hint in kept)
        ends = accumulate(hint.cell_length for hint in first)
        fitting = [hint for hint, end in zip(first, ends, strict=True) if end <= room]
        self.show_line(Content.assemble(*fitting, *kept))


# Displayed name of a key, and its label.
Hint = tuple[str, str]


def _hint(key: str, label: str) -> Content:
    return Content.assemble((f" {key} ", "bold $text-accent"), (f"{label} ", "$muted"))


class TooSmall(Chrome):
    """Notice that replaces a screen on a terminal below the minimum size."""

    def __init__(self) -> None:
        super().__init__(f"terminal too small\nminimum {MIN_WIDTH}x{MIN_HEIGHT}")


class Panel(Vertical):
    """Box around a widget, with a title in its border."""

    DEFAULT_CSS = read_style_sheet(__file__, "panel")
    failure = _EMPTY  # error of the panel's background worker, shown after the panel's title
    _titles: tuple[Content, Content] | None = None

    def __init__(self, *children: Widget, title: str | Content = "", **more: Any) -> None:
        super().__init__(*children, **more)
        self.border_title = title

    def set_titles(self, title: Content, subtitle: Content = _EMPTY) -> None:
        """Set title and subtitle. Does nothing if they are unchanged, because Textual would repaint the whole box."""
        if self._titles is None or not all(map(Content.is_same, self._titles, (title, subtitle))):
            self._titles = (title, subtitle)
            self.border_title = title + self.failure
            self.border_subtitle = subtitle


LEAST_BAR, MOST_BAR = 10, 40
_DATED = 120  # cells; a narrower replay line leaves out the recorded date and time


DEMO = Path(__file__).parents[1] / "demo.skyrec"  # recording of the demo; ``tests/demo`` generates this file
# (second of the demo's recording, caption); captions have at most 76 characters, to fit a terminal of 80 columns
DEMO_CAPTIONS = (
    (0, "A pool of 4 machines starts: 32 ranks, one for each simulated GPU."),
    (7, "train() runs on every rank. Charts show their metrics, the log their output."),
    (45, "The alert names a slow rank and its hot GPU: e goes there. E: next failure."),
    (85, "Rank 13 raised an error, so the others were stopped. e: all tracebacks."),
    (97, "The corrected script runs on the same machines, which then are torn down."),
)


class ReplayLine(Chrome):
    """Status line above the hints, always visible during a replay, with a line for the caption of the demo."""

    def show(self, playback: Playback, keymap: Mapping[str, str]) -> None:
        """Show the playback's position."""
        status = line(playback.state(), playback.note, keymap, self.size.width)
        self.screen.set_class(bool(caption := playback.caption), "-captioned")
        if caption:
            status = Content("\n").join((Content.styled(f" {caption}", "bold $text-accent"), status))
        self.show_line(status)


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
        label = "pause" if state.playing and action.id == "replay.pause" else action.label
        yield with_partner(action.shown_keys(keymap)[0], action, keymap), label


class TextLine(Input):
    """Text input whose value may contain control characters, for example from pasted text or from a preset."""

    cursor_blink = reactive(False, init=False)
    # Replaces the reactive of Textual's Input, with which each change of the text's width causes a layout pass of the
    # whole screen.
    virtual_size = reactive(Size(0, 0))

    @property
    def _value(self) -> Text:  # overrides the property that supplies the text that Textual's Input paints
        if self.password:
            return super()._value
        return Text(sanitize_in_place(self.value), no_wrap=True, overflow="ignore", end="")
