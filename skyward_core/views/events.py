"""Events of pools as typed values. Screens know the pools only by events and views.

Events are small and immutable. The journal stores them as JSON lines (:func:`to_json`), from which the views can be
rebuilt. Log bytes are not events: they have their own files and cursors.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, ClassVar, Literal

from skyward_core.model import outcomes_states_and_alerts as outcomes
from skyward_core.model.errors import Hint
from skyward_core.model.outcomes_states_and_alerts import Outcome, RootCause, Summary, to_json_types
from skyward_core.util.light_dataclass import Value, value


@value(kw_only=True)
class Event(Value):
    """Base class of all events. ``at`` is Unix time in seconds."""

    kinds: ClassVar[dict[str, type[Event]]] = {}
    written_as: ClassVar[str] = ""  # name in journals, if it differs from the class name
    pool: str
    at: float = field(default_factory=time.time)

    def __init_subclass__(cls) -> None:
        # The slots decorator creates the class twice. The second class is the one in use and replaces the first.
        Event.kinds[cls.written_as or cls.__name__] = cls


@value(kw_only=True)
class PoolOpened(Event):
    """A pool was requested, or found in the ledger. ``spec``: see :meth:`PoolSpec.describe`."""

    spec: dict[str, Any]
    created_at: float


@value(kw_only=True)
class PoolState(Event):
    """The state of the pool. ``hint``: a fix, if ``detail`` is an error without one."""

    state: outcomes.PoolStatus
    detail: str = ""
    hint: Hint | None = None


@value(kw_only=True)
class NodePhase(Event):
    """A node entered a phase or reported progress in it. ``retry_at``: Unix time of the next try after a failure."""

    node: int
    phase: outcomes.NodePhase
    detail: str = ""
    retry_at: float | None = None
    address: str = ""


@value(kw_only=True)
class NodeLink(Event):
    """The link to a node came up or went down."""

    node: int
    up: bool
    detail: str = ""


@value(kw_only=True)
class NodeSilence(Event):
    """Testimonies about a node of a gang whose runs may restart: it became suspected, present again, or lost.

    Attributes:
        silences: Name of each witness -> seconds between the node's last sign of life and the event.
    """

    node: int
    state: Literal["present", "suspected", "lost"]
    silences: dict[str, float]


@value(kw_only=True)
class NodeNotice(Event):
    """A preemption notice for a node's machine. ``ends_at``: Unix time on the client's clock, if known. The kind
    "rebalance" only reports a higher risk.
    """

    node: int
    kind: outcomes.NoticeKind
    ends_at: float | None = None


@value(kw_only=True)
class RunOpened(Event):
    """A run was dispatched. ``total``: number of ranks or tasks. ``job``: the job that contains the run as a step, or
    "". ``more``: whether another step follows.
    """

    run: str
    function: str
    kind: outcomes.RunKind
    total: int
    job: str = ""
    more: bool = False


@value(kw_only=True)
class RunPlaced(Event):
    """A run that uses only some nodes got its nodes, listed in order. ``job`` and ``more``: see :class:`RunOpened`."""

    run: str
    nodes: Sequence[int]
    job: str = ""
    more: bool = False


@value(kw_only=True)
class QueuedRun(Value):
    """A run that waits for nodes: their number (0 for all) or indices, Unix time of the request, and requesting
    client.
    """

    run: str
    name: str
    nodes: int
    only: Sequence[int]
    since: float
    who: str = ""


@value(kw_only=True)
class QueueNews(Event):
    """All runs that wait for nodes now, in order."""

    waiting: Sequence[QueuedRun]


@value(kw_only=True)
class RankPhase(Event):
    """The phase of a rank's process since ``at``. Short phases are not reported.

    Attributes:
        until: Unix time at which the process is killed; None if it is not being stopped.
    """

    rank: int
    phase: outcomes.RankPhase
    until: float | None = None


@value(kw_only=True)
class RankBegan(Event):
    """A rank began its part of a run."""

    run: str
    index: int
    rank: int
    node: int


@value(kw_only=True)
class ItemYielded(Event):
    """A generator function yielded its item number ``seq`` on a rank."""

    run: str
    index: int
    rank: int
    seq: int
    summary: Summary


@value(kw_only=True)
class RankEnded(Event):
    """A rank (or task) of a run ended."""

    run: str
    outcome: Outcome


MAX_ROW_TEXT = 400  # characters of a message in the ledger


@value(kw_only=True)
class AttemptEnded(Event):
    """An attempt of a run failed.

    Attributes:
        number: Number of the attempt, from 1.
        cause: Cause of the failure.
        message: Root cause in words.
        restarts: Whether another attempt follows.
        reason: Which budget the restart uses, or why no attempt follows; "" if failures of this cause never restart.
        pause: Seconds until the next attempt.
        step: Largest step that a rank logged; None if no rank logs steps.
        left: Further restarts that the budget of this cause allows; None if the number is unlimited or unknown.
    """

    run: str
    number: int
    cause: outcomes.RestartCause
    message: str
    restarts: bool
    reason: str = ""
    pause: float = 0.0
    step: float | None = None
    left: int | None = None

    @property
    def starts_at(self) -> float:
        """Unix time at which the next attempt starts."""
        return self.at + self.pause

    @property
    def short_message(self) -> str:
        """Root cause in a few words, such as ``rank 1 ended by SIGKILL``."""
        found = re.search(r"SIG[A-Z0-9]+", self.message) if self.cause == "loss" else None
        place = self.message.partition(":")[0].removesuffix(" exited")
        return f"{place} ended by {found[0]}" if found else self.message

    @property
    def short_text(self) -> str:
        """Description for narrow screens, such as ``restart 1 of 3 after a lost rank: rank 1 ended by SIGKILL``."""
        pause = f", in {self.pause:.0f} s" if self.pause else ""
        return f"{self.reason}{pause}: {self.short_message}"

    @property
    def text(self) -> str:
        """Description in one line: the failure, and what follows."""
        place = f" at step {self.step:g}" if self.step is not None else ""
        pause = f", in {self.pause:.0f} s" if self.pause else ""
        then = self.reason + pause if self.restarts else f"not restarted: {self.reason}" if self.reason else ""
        ended = "ended" if self.cause == "growth" else "failed"
        return f"attempt {self.number} {ended}{place}: {self.message}" + (f"; {then}" if then else "")


@value(kw_only=True)
class RunEnded(Event):
    """A run ended: all outcomes have arrived."""

    run: str
    state: outcomes.RunStatus
    root_cause: RootCause | None = None


@value(kw_only=True)
class LeaseNews(Event):
    """Unix time at which the pool ends itself if nothing changes, by idle time-out or time to live. None for never."""

    ends_at: float | None


@value(kw_only=True)
class PriceNews(Event):
    """Price of the pool's machines in US dollars per hour, from now on."""

    hourly: float


@value(kw_only=True)
class BudgetNews(Event):
    """State of a pool's budget in US dollars. ``ends_at``: Unix time of the teardown if the user does not answer."""

    budget: float
    state: outcomes.BudgetStatus
    ends_at: float | None = None


@value(kw_only=True)
class UnfetchedNews(Event):
    """All runs with unfetched results on the nodes, and the size of these results in bytes."""

    runs: dict[str, int]


@value(kw_only=True)
class OutputFetched(Event):
    """An output file was downloaded, or the download failed: ``error`` is the reason."""

    run: str
    node: int
    path: str
    size: int
    target: str
    error: str = ""


@value(kw_only=True)
class CheckpointSaved(Event):
    """A newer complete checkpoint of a run was copied to another machine or store.

    Attributes:
        name: Path of the checkpoint below the ranks' working folder.
        size: Size in bytes.
        saved_at: Unix time at which the ranks saved it.
        place: Place of the copy.
    """

    run: str
    name: str
    size: int
    saved_at: float
    place: str


@value(kw_only=True)
class PoolEnded(Event):
    """A teardown ended. ``receipt``: see :class:`skyward_core.store.receipts_and_bills.Receipt`."""

    written_as: ClassVar[str] = "PoolGone"
    receipt: dict[str, Any]


def attempt_end_row(end: AttemptEnded) -> dict[str, Any]:
    """Convert the end of an attempt to JSON types for the ledger's row of its run."""
    row = to_json_types(replace(end, message=end.message[:MAX_ROW_TEXT]))
    return {name: row[name] for name in row.keys() - {"pool", "run"}}


def to_json(event: Event) -> dict[str, Any]:
    """Convert an event to JSON types, with its kind under "event"."""
    data = {"event": event.written_as or type(event).__name__} | to_json_types(event)
    if (hint := data.get("hint")) is not None:
        data["hint"] = to_json_types(hint)
    if isinstance(event, QueueNews):
        data["waiting"] = [to_json_types(each) for each in event.waiting]
    return data
