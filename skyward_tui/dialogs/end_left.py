"""End what nobody needs of what accounts hold: name it with what it costs, ask, show what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Button, Static

from skyward_core.model.errors import SkywardError
from skyward_core.wire.safe_text import field

from ..app_face import settled
from ..hints import words_of
from ..leftovers import amount_of, named
from ..styles import beside
from ..words import count, duration
from .typed_word import TypedWord

if TYPE_CHECKING:
    from skyward_core.front.sweeping import Sweep


class EndLeftScreen(TypedWord[None]):
    """Where a machine is among it, a word must be typed; else the focus is on Cancel. Closing it stops nothing that
    has begun.

    Args:
        sweep: what is to be ended.
        ended: called once that is over.
    """

    DEFAULT_CSS = beside(__file__)
    CONFIRMS = "#end"

    def __init__(self, sweep: Sweep, ended: Callable[[], None]) -> None:
        super().__init__()
        self.heading = f"End {amount_of(sweep.left)}?"
        self._sweep = sweep
        self._ended = ended
        self._began: float | None = None
        self._word = ""
        if any(each.thing.is_machine for each in sweep.left):
            names = {each.thing.pool for each in sweep.left}
            name = names.pop() if len(names) == 1 else ""
            # A name is a tag, which may be anything.
            self._word = name if name.isascii() and name.isprintable() and name.strip() else ""
            self._word = self._word.strip() or str(len(sweep.left))

    def body(self) -> ComposeResult:
        yield self.facts(Content("\n".join(named(self._sweep.left, self.app.clock()))))
        yield Static(self._question(), id="ask")
        yield from self.field()

    @property
    def word(self) -> str:
        return self._word

    def buttons(self) -> Iterable[Button]:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button("End it", id="end", variant="error", compact=True, disabled=bool(self._word))

    def _question(self, refused: str = "") -> Content:
        parts = [("\nWhat nobody has fetched from there goes with it.", "$text-warning")]
        others = {(each.thing.ledger, each.thing.owner) for each in self._sweep.left if not each.thing.ours}
        for ledger, owner in sorted(others):
            said = f"\n! of ledger {ledger} ({owner}): whether it is in use there cannot be told from here"
            parts.append((said, "$text-warning"))
        if self._word:
            what = "how many things" if self._word == str(len(self._sweep.left)) else "the pool's name"
            parts += [(f"\n\nType {what}, ", ""), (self._word, "bold $text-accent"), (", to end it:", "")]
        if refused:
            parts.append((f"\n✗ nothing was ended: {refused}", "$text-error"))
        return Content.assemble(*parts)

    def confirmed(self) -> None:
        self._begin()

    def refused(self, said: str) -> None:
        self.query_one("#ask", Static).update(self._question(said))

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "end":
            self._begin()
        else:
            self.action_close()

    def action_close(self) -> None:
        if self._began is None:
            self.app.flash("nothing was ended")
        self.dismiss()

    # Ending

    def _begin(self) -> None:
        if self._began is not None or self.app.session is None:
            return
        self._began = self.app.clock()
        self.box.border_title = "Ending"
        for away in self.query("#answer, #ask, #end"):
            away.add_class("hidden")
        close = self.query_one("#cancel", Button)
        close.label = "Hide"
        close.focus()
        # The app's worker and not this screen's: it goes on when the screen is closed.
        self.app.run_worker(self._end(), name="end left", exclusive=False)
        self._timer = self.set_interval(0.2, self._show_progress)
        self._show_progress()

    def _show_progress(self) -> None:
        took = duration(self.app.clock() - (self._began or 0.0))
        said = f"ending {amount_of(self._sweep.left)} … {took}\n\nUntil the account says that it is gone."
        self.show(Content(said))

    async def _end(self) -> None:
        session = self.app.session
        if session is None:
            return
        try:
            remains = await settled(session.end_left(self._sweep))
        except (SkywardError, OSError) as error:
            remains = [words_of(error)]
        many = count(len(self._sweep.left), "thing")
        if remains:
            self.app.flash(f"still there: {remains[0]}", "error")
        else:
            self.app.flash(f"ended, and verified gone: {many}", "done")
        self._ended()
        self.app.look_for_leftovers()
        if not self.is_attached:
            return
        self._timer.stop()
        self.box.border_title = "Something may be left" if remains else "Ended, nothing of it left"
        self.box.set_class(not remains, "-gone")
        lines = [(f"✗ still there: {field(each)}\n", "$text-error") for each in remains]
        self.show(Content.assemble(*(lines or [(f"✓ ended, and verified gone: {many}", "$text-success")])))
        self.query_one("#cancel", Button).label = "Close"

    def on_mount(self) -> None:
        self.call_after_refresh(self.fit)
