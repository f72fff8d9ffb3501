"""Pick an accelerator by typing any part of what is known of it: of what is offered, the cheapest first, then of the
catalogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import work
from textual.content import Content
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from skyward_core import accelerators
from skyward_core.model.errors import SkywardError
from skyward_core.model.offer import OfferList
from skyward_core.wire.safe_text import field

from ..ends import beside as in_thread
from ..hints import words_of
from ..offered_rows import HEAD, OfferRow, offer_rows
from ..words import one_line
from .picker import Picker


class AcceleratorsScreen(Picker):
    """Returns an accelerator as a launch names it, with how many where that is known; or None.

    Args:
        ask: asks what is offered, and may take its time; None where whoever has the machines offers nothing.
    """

    heading = "Pick an accelerator"
    ENTER = "takes it"
    PLACEHOLDER = "part of a name, maker, memory or zone: 8x80gb, hopper, us-east"

    def __init__(self, ask: Callable[[], OfferList] | None = None) -> None:
        super().__init__()
        self._ask = ask
        self._offers: Sequence[OfferRow] = ()
        self._notes: Sequence[str] = ()
        self._wanted: list[str] = []  # of the rows, in their order

    def on_mount(self) -> None:
        if self._ask is not None:
            self._notes = ("asking what is offered …",)
            self._look(self._ask)

    @work
    async def _look(self, ask: Callable[[], OfferList]) -> None:
        try:
            found = await in_thread(ask)
        except (SkywardError, OSError) as error:
            self._notes = (words_of(error),)
        else:
            self._offers, self._notes = offer_rows(found.offers), found.notes
        if self.is_attached:
            self.fill(self.query_one(Input).value)

    def fill(self, typed: str) -> None:
        listed = self.query_one(OptionList)
        listed.clear_options()
        self._wanted = []
        found = [row for row in self._offers if row.has(typed)]
        if not typed.strip() and (usual := next(filter(lambda row: row.is_usual, found), None)):
            self.say("the cheapest 8 × 80 GB")
            self._add(usual.wanted, Content(f"  {usual.told}"))
        for note in self._notes:
            self.say(one_line(field(note)))
        if found:
            self.say(f"  {HEAD}")
        for row in found:
            self._add(row.wanted, Content(f"  {row.told}"))
        entries = accelerators.search(typed)
        if self._ask is not None and entries:
            self.say("of the catalogue, whether it is offered or not")
        for entry in entries:
            self._add(entry.name, _row(entry))
        if not self._wanted:
            self.say(f"no accelerator of the catalogue fits {typed.strip()!r}")
        listed.action_first()

    def _add(self, wanted: str, row: Content) -> None:
        self.query_one(OptionList).add_option(Option(row, id=str(len(self._wanted))))
        self._wanted.append(wanted)

    def on_input_submitted(self) -> None:
        self.query_one(OptionList).action_select()

    def take(self, picked: str) -> None:
        self.dismiss(self._wanted[int(picked)])


def _row(entry: accelerators.Entry) -> Content:
    sizes = "/".join(f"{variant.memory_gb:g}" for variant in entry.variants)
    best = max((variant.bf16_tflops or 0.0 for variant in entry.variants), default=0.0)
    power = f"bf16 {best:,.0f} TFLOP/s" if best else ""
    return Content.assemble(
        f"{entry.name:<20}", (f"{sizes + ' GB':<12} {power:<20} {entry.maker} {entry.architecture}", "$muted")
    )
