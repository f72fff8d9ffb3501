"""Take pools down: ask, show each node go, then the receipt that nothing is left."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Button, Input, Static

from skyward_core.model.errors import SkywardError
from skyward_core.views.views import PoolView

from ..actions import bindings
from ..app_face import settled
from ..hints import words_of
from ..styles import beside
from ..theme import node_look
from ..words import count, duration, money
from .base import Dialog

if TYPE_CHECKING:
    from skyward_core.front.history import Receipt

_NODES_SHOWN = 12


class TeardownScreen(Dialog[bool]):
    """Tears pools down after confirmation; returns whether every one is verified gone.

    Where money or work that nobody has fetched is at stake, a word must be typed, into an empty field that has the
    focus; else it is a question, with the focus on Cancel. Whoever closes it without an answer is told that nothing
    was torn down.

    Args:
        pools: their keys.
        asked: whether the person has just been asked, so that where no word is needed it begins at once.
    """

    BINDINGS = bindings("teardown")
    DEFAULT_CSS = beside(__file__)

    def __init__(self, pools: list[str], *, asked: bool = False) -> None:
        super().__init__()
        self._asked = asked
        self._keys = pools
        self.heading = f"Tear down {_name(pools[0]) if len(pools) == 1 else count(len(pools), 'pool')}?"
        self._receipts: dict[str, Receipt | str] = {}
        self._began = False

    @property
    def _views(self) -> list[PoolView]:
        found = (self.app.find_pool(key) for key in self._keys)
        return [view for view in found if view is not None]

    @cached_property
    def _word(self) -> str:
        """What must be typed, whatever becomes of the pools meanwhile; empty where a press of the button is enough."""
        if not any(view.is_precious for view in self._views):
            return ""
        return _name(self._keys[0]) if len(self._keys) == 1 else str(len(self._keys))

    def body(self) -> ComposeResult:
        yield Static(self._question(), id="text")
        if self._word:
            answer = Input(compact=True, id="answer")
            answer.cursor_blink = False
            yield answer

    def buttons(self) -> Iterable[Button]:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button("Tear down", id="down", variant="error", compact=True, disabled=bool(self._word))

    def _question(self) -> Content:
        now = self.app.clock()
        lines = [self._facts(view, now) for view in self._views]
        if word := self._word:
            what = "the pool's name" if len(self._keys) == 1 else "the number of pools"
            lines.append(Content.assemble(f"\nType {what}, ", (word, "bold $text-accent"), ", to tear down:"))
        return Content("\n").join(lines)

    def _facts(self, view: PoolView, now: float) -> Content:
        parts: list[tuple[str, str]] = [
            (view.name, "bold"),
            (f": {count(len(view.nodes), 'node')}, {count(view.world_size, 'rank')}, ", ""),
            (f"up {duration(now - view.created_at)}, {money(view.price_hourly)}/h.", ""),
        ]
        running = [run for run in view.runs.values() if run.state == "running"]
        for run in running:
            parts.append(
                (f"\n! run {run.id} ({run.function}) is active and will be stopped.", "$text-warning")
            )
        for name, size in view.unfetched.items():
            what = f"run {name} ({view.runs[name].function})" if name in view.runs else f"run {name}"
            said = f"{what}: {size:,} bytes that nobody has fetched are brought here first."
            parts.append((f"\n! {said}", "$text-warning"))
        return Content.assemble(*parts)

    # Confirming

    def on_mount(self) -> None:
        if self._asked and not self._word:
            self._begin()

    def on_input_changed(self, event: Input.Changed) -> None:
        self.query_one("#down", Button).disabled = event.value.strip() != self._word

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.value.strip() == self._word:
            self._begin()
        else:
            self._refuse(event.value.strip())

    def _refuse(self, typed: str) -> None:
        said = f"{typed!r} is not {self._word!r}" if typed else "nothing was typed"
        hint = Content.styled(f"✗ not torn down: {said}. {self.key_of('dialog.close')} closes", "$text-error")
        self.query_one("#text", Static).update(Content("\n").join([self._question(), hint]))

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "down":
            self._begin()
        else:
            self.action_close()

    def action_close(self) -> None:
        """Closing does not stop a teardown that has begun; it goes on and says how it ended."""
        if not self._began:
            names = ", ".join(_name(key) for key in self._keys)
            self.app.flash(f"not torn down: {names}")
        self.dismiss(self._began and self._is_over and self._all_gone)

    # Going down

    def _begin(self) -> None:
        session = self.app.session
        if self._began or session is None:
            return
        self._began = True
        self.box.border_title = "Tearing down"
        for answer in self.query("#answer"):
            answer.add_class("hidden")
        self.query_one("#down").add_class("hidden")
        close = self.query_one("#cancel", Button)
        close.label = "Hide"
        close.focus()
        # The app's worker and not this screen's: the teardown goes on when the screen is closed.
        self.app.run_worker(self._tear_down(), name="teardown", exclusive=False)
        self.set_interval(0.2, self._show_progress)
        self._show_progress()

    async def _tear_down(self) -> None:
        session = self.app.session
        if session is None:
            return
        futures = {key: session.down(key) for key in self._keys}
        for key, future in futures.items():
            try:
                verified: Receipt = await settled(future)
                self._receipts[key] = verified
            except (SkywardError, OSError) as error:
                self._receipts[key] = words_of(error)
        for key, receipt in self._receipts.items():
            self.app.flash(f"{_name(key)}: {_said(receipt)}", "done" if _is_gone(receipt) else "error")
        if self.is_attached:
            self._show_progress()
            self.query_one("#cancel", Button).label = "Close"

    @property
    def _is_over(self) -> bool:
        return len(self._receipts) == len(self._keys)

    @property
    def _all_gone(self) -> bool:
        return all(_is_gone(receipt) for receipt in self._receipts.values())

    def _show_progress(self) -> None:
        blocks = [
            _progress(_name(key), self.app.find_pool(key), self._receipts.get(key)) for key in self._keys
        ]
        self.query_one("#text", Static).update(Content("\n").join(blocks))
        if self._is_over:
            title = "Torn down, nothing left" if self._all_gone else "Something may be left"
            self.box.border_title = title
            self.box.set_class(self._all_gone, "-gone")


def _name(key: str) -> str:
    """The pool's name, of its key."""
    return key.partition(".")[0]


def _is_gone(receipt: Receipt | str) -> bool:
    return not isinstance(receipt, str) and receipt.ok


def _said(receipt: Receipt | str) -> str:
    """The receipt in words; an error as it is."""
    if isinstance(receipt, str):
        return receipt
    return f"{receipt} ({receipt.seconds:.1f} s)"


def _progress(name: str, view: PoolView | None, receipt: Receipt | str | None) -> Content:
    parts: list[tuple[str, str]] = [(name, "bold")]
    nodes = view.nodes if view is not None else []
    for node in nodes[:_NODES_SHOWN]:
        mark = node_look(node.phase)
        state = (
            ("✓ gone", "$text-success")
            if node.phase == "gone"
            else (f"◍ stopping ({mark.word})", "$text-warning")
        )
        parts += [(f"\n  n{node.index:<4}", ""), state, (f"  {node.detail}", "$muted")]
    if len(nodes) > _NODES_SHOWN:
        gone = sum(node.phase == "gone" for node in nodes)
        parts.append((f"\n  … {gone} of {count(len(nodes), 'node')} gone", "$muted"))
    if receipt is not None:
        good = _is_gone(receipt)
        parts.append(
            (
                f"\n  {'✓' if good else '✗'} {_said(receipt)}",
                "bold $text-success" if good else "bold $text-error",
            )
        )
    return Content.assemble(*parts)
