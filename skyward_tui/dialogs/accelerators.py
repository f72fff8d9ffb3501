"""Pick an accelerator of the catalogue by typing any part of what is known of it."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from skyward_core import accelerators

from .picker import Picker


class AcceleratorsScreen(Picker):
    """Returns the name of an accelerator, or None."""

    heading = "Pick an accelerator"
    ENTER = "takes it"
    PLACEHOLDER = "part of a name, maker, architecture or memory: hopper 80gb"

    def fill(self, typed: str) -> None:
        listed = self.query_one(OptionList)
        listed.clear_options()
        listed.add_options(Option(_row(entry), id=entry.name) for entry in accelerators.search(typed))
        if not listed.option_count:
            self.say(f"no accelerator of the catalogue fits {typed.strip()!r}")
        listed.action_first()

    def on_input_submitted(self) -> None:
        self.query_one(OptionList).action_select()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)


def _row(entry: accelerators.Entry) -> Content:
    sizes = "/".join(f"{variant.memory_gb:g}" for variant in entry.variants)
    best = max((variant.bf16_tflops or 0.0 for variant in entry.variants), default=0.0)
    power = f"bf16 {best:,.0f} TFLOP/s" if best else ""
    return Content.assemble(
        f"{entry.name:<20}", (f"{sizes + ' GB':<12} {power:<20} {entry.maker} {entry.architecture}", "$muted")
    )
