"""Confirmation dialogs before teardown and quitting."""

from __future__ import annotations

import sys
from collections.abc import Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Button, Static

from skyward_core.model.errors import SkywardError
from skyward_core.util.number_size_and_time_format import format_size
from skyward_core.views.pool_view import PoolView
from skyward_tui.dialogs.basic_dialogs import ChoiceScreen, Dialog, Result
from skyward_tui.text.error_hint_text import format_error
from skyward_tui.text.number_time_and_run_state_format import count, duration, hourly, money
from skyward_tui.text.state_styles import node_style
from skyward_tui.text.teardown_and_leftovers import receipt_line, receipt_lines, total_size, unfetched_lines
from skyward_tui.ui.actions import bindings
from skyward_tui.ui.session_futures import wait_shielded
from skyward_tui.ui.themes import read_style_sheet

if TYPE_CHECKING:
    from skyward_core.client.run_history import Receipt
    from skyward_core.client.session import Session
    from skyward_core.model.output_files import Unfetched


_NODES_SHOWN = 12
# states of pools whose agents still answer, so that their unfetched files can be listed
_ASKABLE_STATES = ("up", "degraded")
EVERYTHING = sys.maxsize  # bytes; download limit that is never reached
# by button: maximum bytes to download before the teardown; None for the limit in the pools' options
_FETCHED = {"all": EVERYTHING, "some": None, "none": 0}


class ConfirmedWork(Dialog[Result]):
    """Dialog that asks before an irreversible action, with the focus on Cancel, and then shows the progress of the
    action.

    Subclasses put the text of the question into a widget ``#text`` in the container ``#facts``. The progress later
    replaces this text.

    Attributes:
        CONFIRMS: Selector of the buttons that confirm.
        has_started: Whether the user has confirmed.
    """

    DEFAULT_CSS = read_style_sheet(__file__, "confirmed_work")
    CONFIRMS: ClassVar[str] = ""
    has_started = False

    def show_facts(self, text: Content) -> None:
        """Replace the text above the buttons."""
        self.query_one("#text", Static).update(text)
        self.call_after_refresh(self.fit_to_screen)

    def show_progress(self) -> None:
        """Show the text about the progress of the confirmed action."""
        raise NotImplementedError

    def start(self, title: str, work: Coroutine[Any, Any, None]) -> None:
        """Start the work, and show its progress. The work continues if the dialog is closed."""
        self.has_started = True
        self.box.border_title = title
        self.box.border_subtitle = ""
        self.query(f"#ask, {self.CONFIRMS}").add_class("hidden")
        close = self.query_one("#cancel", Button)
        close.label = "Hide"
        close.focus()
        self.app.run_worker(work, exclusive=False)
        self.progress_timer = self.set_interval(0.2, self.show_progress)
        self.show_progress()

    def finish(self, title: str, *, gone: bool) -> None:
        """Show that the confirmed action has ended.

        Args:
            title: New title.
            gone: Whether all resources are verified to be gone.
        """
        self.box.border_title = title
        self.box.set_class(gone, "-gone")
        self.query_one("#cancel", Button).label = "Close"


class TeardownScreen(ConfirmedWork[bool]):
    """Dialog that tears pools down after confirmation. Returns whether all of them are verified gone.

    While the dialog is open, the nodes list their unfetched files. If the teardown would lose some of these files, the
    user chooses after the confirmation how much to download first. A confirmation before the lists have arrived waits
    for them; a second confirmation does not wait.

    Args:
        pools: Keys of the pools.
        asked: Whether the user has just confirmed elsewhere. The teardown then starts at once, unless money, a run or
            results are at stake.
    """

    BINDINGS = bindings("teardown")
    DEFAULT_CSS = read_style_sheet(__file__, "teardown")
    CONFIRMS = "#down, .fetch"

    def __init__(self, pools: list[str], *, asked: bool = False) -> None:
        super().__init__()
        self._is_confirmed = asked
        self._keys = pools
        self.heading = f"Tear down {_name(pools[0]) if len(pools) == 1 else count(len(pools), 'pool')}?"
        self._receipts: dict[str, Receipt | str] = {}
        self._unfetched: dict[str, Unfetched | str] = {}  # by pool key: unfetched files, or the text of an error
        self._has_unfetched = False  # whether the lists of unfetched files of all pools have arrived
        self._waits = False  # whether the user has confirmed, and the teardown waits for the lists of unfetched files

    @property
    def _views(self) -> list[PoolView]:
        found = (self.app.find_pool(key) for key in self._keys)
        return [view for view in found if view is not None]

    def body(self) -> ComposeResult:
        yield self.facts(self._question())

    def buttons(self) -> Iterable[Button]:
        yield Button("Cancel", id="cancel", compact=True)
        yield Button("Tear down", id="down", variant="error", compact=True)
        for id, label in (("all", "Fetch all"), ("some", ""), ("none", "Fetch none")):
            yield Button(label, id=id, variant="error", compact=True, classes="fetch hidden")

    def _question(self) -> Content:
        now = self.app.clock()
        lines = [self._facts(view, now) for view in self._views]
        if not self._has_unfetched:
            lines.append(Content.styled("  listing unfetched files …", "$muted"))
        if self._waits:
            lines.append(Content.styled("  Confirm again to tear down without the list of files.", "$text-warning"))
        if self._over_limit:
            lines.append(Content.styled("\nHow much should be downloaded before it is deleted?", "bold"))
        return Content("\n").join(lines)

    @property
    def _over_limit(self) -> list[Unfetched]:
        """Unfetched files per pool, if they exceed the pool's download limit and a teardown would lose some of them."""
        return [found for found in self._unfetched.values() if not isinstance(found, str) and found.exceeds_limit]

    def _facts(self, view: PoolView, now: float) -> Content:
        nodes = view.node_count
        cost = [hourly(view), f"spent {money(view.spent(now))}" if view.price_hourly else ""]
        parts: list[tuple[str, str]] = [
            (view.name, "bold"),
            (f": {count(nodes, 'node')}, {count(nodes * view.ranks_per_node, 'rank')}, ", ""),
            (f"up {', '.join(filter(None, (duration(now - view.created_at), *cost)))}.", ""),
        ]
        for run in [run for run in view.runs.values() if run.state == "running"]:
            parts.append((f"\n! run {run.id} ({run.function}) is active and will be stopped.", "$text-warning"))
        for name, size in view.unfetched.items():
            what = f"run {name} ({view.runs[name].function})" if name in view.runs else f"run {name}"
            parts.append((f"\n! {what}: downloads {size:,} unfetched bytes first.", "$text-warning"))
        parts += [(f"\n{text}", style) for text, style in self._files(view)]
        return Content.assemble(*parts)

    def _files(self, view: PoolView) -> Iterator[tuple[str, str]]:
        found = self._unfetched.get(view.key)
        if isinstance(found, str):
            yield f"! cannot list the files of its ranks: {found}", "$text-warning"
        elif found is not None:
            yield from unfetched_lines(found)

    # Part of the dialog that lists unfetched files

    @work
    async def _ask_nodes(self) -> None:
        asked = [view.key for view in self._views if view.state in _ASKABLE_STATES]
        futures = {key: self.app.required_session.unfetched_files(key) for key in asked}
        for key, future in futures.items():
            try:
                found: Unfetched = await wait_shielded(future)
                self._unfetched[key] = found
            except (SkywardError, OSError) as error:
                self._unfetched[key] = format_error(error)
        self._has_unfetched = True
        if self.has_started or not self.has_widgets:
            return
        self._show_question()
        if self._waits:
            self._waits = False
            self.confirm()

    def _show_question(self) -> None:
        self.show_facts(self._question())
        if self._over_limit and not self.has_started:
            self._offer_fetch()

    def _offer_fetch(self) -> None:
        """Show buttons for how many unfetched files to download before the teardown."""
        found = self._over_limit
        self.query_one("#all", Button).label = f"Fetch all {total_size([f for each in found for f in each.others])}"
        limit = float(sum(each.download_limit for each in found))
        self.query_one("#some", Button).label = f"Up to {format_size(limit)}"
        before = self.query_one("#down")
        self.query(".fetch").remove_class("hidden")
        if before.has_focus:
            self.query_one("#all").focus()
        before.add_class("hidden")

    # Confirmation by the user

    def on_mount(self) -> None:
        self._ask_nodes()
        if self._is_confirmed and not any(view.needs_confirmation for view in self._views):
            self.confirm()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        id = event.button.id or ""
        if id in _FETCHED:
            self._start(_FETCHED[id])
        elif id == "down":
            self.confirm()
        else:
            self.action_close()

    def action_close(self) -> None:
        """Close the dialog. A teardown that has started continues, and its result is shown as a message."""
        if not self.has_started:
            names = ", ".join(_name(key) for key in self._keys)
            self.app.flash(f"not torn down: {names}")
        self.dismiss(self._all_gone)

    # Teardown and its progress

    def confirm(self) -> None:
        """Start the teardown. Before that, wait for the lists if necessary, or ask how much to download."""
        if not self._has_unfetched and not self._waits:
            self._waits = True
            self._show_question()
        elif self._over_limit and not self.has_started:
            self._offer_fetch()
            self.query_one("#all").focus()
        else:
            self._start(None)

    def _start(self, keep_outputs: int | None) -> None:
        """Start the teardown.

        Args:
            keep_outputs: Bytes of files to download first; None for the limit in the pools' options.
        """
        if not self.has_started and (session := self.app.session) is not None:
            self.start("Tearing down", self._tear_down(session, keep_outputs))

    async def _tear_down(self, session: Session, keep_outputs: int | None) -> None:
        futures = {key: session.tear_down(key, keep_outputs=keep_outputs) for key in self._keys}
        for key, future in futures.items():
            try:
                verified: Receipt = await wait_shielded(future)
                self._receipts[key] = verified
            except (SkywardError, OSError) as error:
                self._receipts[key] = format_error(error)
        for key, receipt in self._receipts.items():
            text = receipt if isinstance(receipt, str) else receipt_line(receipt)
            self.app.flash(f"{_name(key)}: {text}", "done" if _is_gone(receipt) else "error")
        if any(view.has_unknown_price or view.price_hourly for view in self._views):
            self.app.scan_leftovers()
        if self.has_widgets:
            self.show_progress()
            title = "Torn down" if any(map(_has_details, self._receipts.values())) else "Torn down, nothing left"
            self.finish(title if self._all_gone else "Not verified: machines may remain", gone=self._all_gone)

    @property
    def _all_gone(self) -> bool:
        return len(self._receipts) == len(self._keys) and all(map(_is_gone, self._receipts.values()))

    def show_progress(self) -> None:
        blocks = [_progress(_name(key), self.app.find_pool(key), self._receipts.get(key)) for key in self._keys]
        if any(not isinstance(each, str) and each.unaccounted for each in self._receipts.values()):
            retry = f"\n{self.key_of('pools.down')}: retry once the missing machines can be reached"
            blocks.append(Content.styled(retry, "$text-warning"))
        self.show_facts(Content("\n").join(blocks))


def _name(key: str) -> str:
    """Return the name of a pool from its key."""
    return key.partition(".")[0]


def _is_gone(receipt: Receipt | str) -> bool:
    return not isinstance(receipt, str) and receipt.ok


def _has_details(receipt: Receipt | str) -> bool:
    """Check whether a receipt has notes, or retained or lost results."""
    return not isinstance(receipt, str) and bool(receipt.notes or receipt.retained or receipt.lost)


def _progress(name: str, view: PoolView | None, receipt: Receipt | str | None) -> Content:
    parts: list[tuple[str, str]] = [(name, "bold")]
    nodes = view.nodes if view is not None else []
    for node in nodes[:_NODES_SHOWN]:
        if receipt is not None and not isinstance(receipt, str) and node.index not in receipt.gone:
            state = "! not verified", "$text-warning"  # for example, the node was lost before the teardown
        elif node.phase == "gone":
            state = "✓ gone", "$text-success"
        else:
            state = f"◍ stopping ({node_style(node.phase).word})", "$text-warning"
        parts += [(f"\n  n{node.index:<4}", ""), state, (f"  {node.detail}", "$muted")]
    if len(nodes) > _NODES_SHOWN:
        gone = sum(node.phase == "gone" for node in nodes)
        parts.append((f"\n  … {gone} of {count(len(nodes), 'node')} gone", "$muted"))
    if receipt is None and view is not None and view.detail:
        parts.append((f"\n  {view.detail}", "$muted"))
    if isinstance(receipt, str):
        parts.append((f"\n  ✗ {receipt}", "bold $text-error"))
    elif receipt is not None:
        parts += [(f"\n  {text}", style) for text, style in receipt_lines(receipt)]
    return Content.assemble(*parts)


class QuitScreen(ChoiceScreen):
    """Dialog that asks whether to quit, and whether to tear pools down first. Returns "keep", "down" or "cancel"."""

    def __init__(self, pools: list[str]) -> None:
        names = ", ".join(pools[:5]) + (" …" if len(pools) > 5 else "")
        text = (
            f"{count(len(pools), 'pool')} still up: {names}.\n\n"
            "Quit, keep running: active runs continue, and the app shows the pools again when you reopen it. Idle "
            "pools shut down. Queued runs are cancelled; gang sweeps start no further trials."
        )
        choices = [("keep", "Quit, keep running", False), ("down", "Tear down", True), ("cancel", "Cancel", False)]
        super().__init__("Quit?", text, choices, escape="cancel")
