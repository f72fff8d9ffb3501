"""Why a run failed: the root cause first, then the other failures, what was lost, what we stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from skyward_core.model.outcome import Outcome, signal_name
from skyward_core.model.stacks import StackFrame
from skyward_core.views.last_figures import LastFigures
from skyward_core.views.stacks import is_library, short_file
from skyward_core.views.views import RunView

from ..actions import bindings
from ..editing import edit_named, folders_of
from ..editor import places
from ..machine_cells import figures_line
from ..source_lines import SourceFile, source_of
from ..styles import beside
from ..theme import look
from ..widgets.before_failure import BeforeFailure
from ..widgets.chrome import Crumbs, Panel
from ..widgets.stack_code import StackCode, Standing
from ..words import failure, one_line, took
from .base import BaseScreen

_BESIDE = 120  # columns from which there is room beside a traceback
_FRAMES = 3  # of a traceback of which the code is shown
_ORDER = ("raised", "exited", "lost", "collateral")


def failures(run: RunView) -> list[Outcome]:
    """Outcomes that are no results: root cause first, collateral last, ranks in order within a kind."""
    root = run.root_cause.rank if run.root_cause else None
    failed = [outcome for outcome in run.outcomes() if outcome.kind != "returned"]
    return sorted(
        failed,
        key=lambda o: (o.rank != root or o.kind == "collateral", _ORDER.index(o.kind), o.index),
    )


def account(outcome: Outcome, figures: LastFigures | None = None) -> str:
    """One failure, whole, as text, with what its machine was measured at last before."""
    head = f"rank {outcome.rank} on node {outcome.node} {outcome.kind} after {took(outcome.seconds)}"
    if outcome.signal is not None:
        head += f", ended by {signal_name(outcome.signal)}"
    elif outcome.exit_code is not None:
        head += f", exit status {outcome.exit_code}"
    if figures is not None:
        head += f"\n{figures_line(figures)}"
    if outcome.error is None:
        return head
    error = failure(outcome.kind, outcome.error.type, outcome.error.message)
    traceback = outcome.error.traceback.strip()
    return "\n\n".join(part for part in (head, error, traceback) if part)


class ErrorsScreen(BaseScreen[int | None]):
    """Returns a rank whose log is to be read, or None."""

    SCOPE = "errors"
    BINDINGS = bindings("errors")
    DEFAULT_CSS = beside(__file__)

    def __init__(self, run: RunView) -> None:
        super().__init__()
        self._outcomes = failures(run)
        self._run = run
        self._told = ""

    def body(self) -> ComposeResult:
        listed = Panel(OptionList(*self._options(), compact=True), id="failed")
        listed.border_title = "failures"
        yield listed
        self._code = StackCode(id="code")
        trace = Panel(VerticalScroll(Static(id="traceback")), self._code, id="trace")
        trace.border_title = "traceback"
        self._before = BeforeFailure()
        before = Panel(self._before, id="before")
        before.border_title = "before it"
        yield Horizontal(trace, before, id="sides")

    def _options(self) -> list[Option]:
        return [
            Option(self._row(outcome, first=i == 0), id=str(i)) for i, outcome in enumerate(self._outcomes)
        ]

    def _row(self, outcome: Outcome, *, first: bool) -> Content:
        mark = look(outcome.kind)
        cause = first and self._run.root_cause is not None
        dim = outcome.kind == "collateral"
        error = outcome.error
        said = failure(outcome.kind, error.type, one_line(error.message)) if error else ""
        if outcome.signal is not None and signal_name(outcome.signal) not in said:
            said = f"{signal_name(outcome.signal)}: {said}".rstrip(": ")
        return Content.assemble(
            (" ROOT CAUSE " if cause else "            ", "bold $text-error" if cause else ""),
            (f" r{outcome.rank:<4}n{outcome.node:<4}", "$muted" if dim else "bold"),
            (f"{mark.text:<14}", mark.style),
            (said, "$muted" if dim else ""),
        )

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()
        self._show(0)
        self.pulse(self.app.clock())

    def on_resize(self) -> None:
        self.set_class(self.size.width >= _BESIDE, "-beside")
        super().on_resize()

    def pulse(self, now: float) -> None:
        counts = [
            Content.styled(f"{look(kind).glyph} {many} {kind}", look(kind).style)
            for kind in _ORDER
            if (many := self._run.counts.get(kind))
        ]
        self.query_one(Crumbs).show(["pools", self._run.pool, self._run.function, "errors"], counts)
        if self._told != self._account(self._chosen):  # the kernel's log tells of a GPU a moment later
            self._show(self.query_one(OptionList).highlighted or 0)
        super().pulse(now)

    @property
    def _chosen(self) -> Outcome:
        return self._outcomes[self.query_one(OptionList).highlighted or 0]

    def _show(self, place: int) -> None:
        outcome = self._outcomes[place]
        self.query_one("#trace").border_title = f"rank {outcome.rank}"
        self._told = self._account(outcome)
        self.query_one("#traceback", Static).update(Content(self._told))
        pool = next((each for each in self.app.pools() if self._run.id in each.runs), None)
        self._before.show(pool, self._run, outcome)
        self.run_worker(self._show_code(outcome), group="code", exclusive=True)

    async def _show_code(self, outcome: Outcome) -> None:
        """The person's own lines around where it failed, the innermost first, as far as their files are here."""
        found = [] if outcome.error is None else list(places(outcome.error.traceback.splitlines()))
        frames = [StackFrame("", name, line) for name, line in dict.fromkeys(found) if not is_library(name)]
        folders = await folders_of(self.app, self._run)
        sources = await asyncio.to_thread(lambda: [source_of(frame, folders) for frame in frames[:_FRAMES]])
        if self.is_attached:
            told = [
                Standing(self._head_of(frame, source, folders), source)
                for frame, source in zip(frames, sources, strict=False)
                if source is not None
            ]
            self._code.update(told)
            self.query_one("#trace").set_class(bool(told), "-code")

    def _head_of(self, frame: StackFrame, source: SourceFile, folders: Sequence[Path]) -> Content:
        place = f"{short_file(frame.file, tuple(map(str, folders)))}:{frame.line}"
        changed = source.changed_at > self._run.opened_at
        return Content.assemble(
            (place, "$text-accent"), ("  ! changed since the run began" if changed else "", "$text-warning")
        )

    def _account(self, outcome: Outcome) -> str:
        figures = self._run.figures.get(outcome.node) if outcome.kind != "collateral" else None
        return account(outcome, figures)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        self._show(event.option_index)

    def on_option_list_option_selected(self) -> None:
        self.action_log()

    def action_log(self) -> None:
        self.dismiss(self._chosen.rank)

    def action_copy(self) -> None:
        self.app.copy(self._account(self._chosen), "traceback")

    def action_editor(self) -> None:
        lines = self._account(self._chosen).splitlines()
        self.run_worker(edit_named(self.app, self._run, lines), group="editor", exclusive=True)

    def action_back(self) -> None:
        self.dismiss(None)
