"""Events of pools as typed values. Screens get all information about pools from events and from views built from them.

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
    written_as: ClassVar[str] = ""  # name of the event's kind in journals, if it differs from the class name
    pool: str
    at: float = field(default_factory=time.time)

    def __init_subclass__(cls) -> None:
        # With slots, the decorator creates the class a second time. Register the second class, which is the one in use.
        Event.kinds[cls.written_as or cls.__name__] = cls


@value(kw_only=True)
class PoolOpened(Event):
    """Event: a pool was requested, or found in the ledger. ``spec``: see :meth:`PoolSpec.describe`."""

    spec: dict[str, Any]
    created_at: float


@value(kw_only=True)
class PoolState(Event):
    """Event: the state of a pool changed. ``hint``: how to fix the problem, if ``detail`` is an error without a fix."""

    state: outcomes.PoolStatus
    detail: str = ""
    hint: Hint | None = None


@value(kw_only=True)
class NodePhase(Event):
    """Event: a node entered a phase or reported progress in it.

    ``retry_at``: Unix time of the next try after a failure.
    """

    node: int
    phase: outcomes.NodePhase
    detail: str = ""
    retry_at: float | None = None
    address: str = ""


@value(kw_only=True)
class NodeLink(Event):
    """Event: the client's connection to a node's agent was established or lost."""

    node: int
    up: bool
    detail: str = ""


@value(kw_only=True)
class NodeSilence(Event):
    """Event: a node of a gang whose runs may restart became suspected, present again, or lost.

    Attributes:
        silences: Name of each witness (a client or agent that watches the node) -> seconds between the node's last sign
            of life and the event.
    """

    node: int
    state: Literal["present", "suspected", "lost"]
    silences: dict[str, float]


@value(kw_only=True)
class NodeNotice(Event):
    """Event: a preemption notice for a node's machine arrived.

    ``ends_at``: Unix time of the preemption on the client's clock, if known. The kind "rebalance" only reports a higher
    risk.
    """

    node: int
    kind: outcomes.NoticeKind
    ends_at: float | None = None


@value(kw_only=True)
class RunOpened(Event):
    """Event: a run was dispatched.

    ``total``: number of ranks or tasks. ``job``: the job that contains the run as a step, or "". ``more``: whether
    another step follows.
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
    """A run that waits for nodes.

    Contains the number of nodes (0 for all) or their indices, the Unix time of the request, and the requesting client.
    """

    run: str
    name: str
    nodes: int
    only: Sequence[int]
    since: float
    who: str = ""


@value(kw_only=True)
class QueueNews(Event):
    """Event: the runs that wait for nodes changed. Contains all of them, in the order in which they get nodes."""

    waiting: Sequence[QueuedRun]


@value(kw_only=True)
class RankPhase(Event):
    """Event: a rank's process entered a phase at ``at``. Short phases are not reported.

    Attributes:
        until: Unix time at which the process is killed; None if it is not being stopped.
    """

    rank: int
    phase: outcomes.RankPhase
    until: float | None = None


@value(kw_only=True)
class RankBegan(Event):
    """Event: a rank began its part of a run."""

    run: str
    index: int
    rank: int
    node: int


@value(kw_only=True)
class ItemYielded(Event):
    """Event: a generator function yielded its item number ``seq`` on a rank."""

    run: str
    index: int
    rank: int
    seq: int
    summary: Summary


@value(kw_only=True)
class RankEnded(Event):
    """Event: a rank's part of a run, or a task, ended."""

    run: str
    outcome: Outcome


MAX_ROW_TEXT = 400  # maximum characters of an outcome's message in the ledger


@value(kw_only=True)
class AttemptEnded(Event):
    """Event: an attempt of a run failed.

    Attributes:
        number: Number of the attempt, from 1.
        cause: Cause of the failure.
        message: Root cause in words.
        restarts: Whether another attempt follows.
        reason: Which limit on restarts applies, or why no attempt follows; "" if failures of this cause never restart.
        pause: Seconds until the next attempt.
        step: Largest step that a rank logged; None if no rank logs steps.
        left: Further restarts that the limit for this cause allows; None if the number is unlimited or unknown.
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
        """Description in one line: the failure, and whether the run restarts."""
        place = f" at step {self.step:g}" if self.step is not None else ""
        pause = f", in {self.pause:.0f} s" if self.pause else ""
        then = self.reason + pause if self.restarts else f"not restarted: {self.reason}" if self.reason else ""
        ended = "ended" if self.cause == "growth" else "failed"
        return f"attempt {self.number} {ended}{place}: {self.message}" + (f"; {then}" if then else "")


@value(kw_only=True)
class RunEnded(Event):
    """Event: a run ended, because all outcomes have arrived."""

    run: str
    state: outcomes.RunStatus
    root_cause: RootCause | None = None


@value(kw_only=True)
class LeaseNews(Event):
    """Event: the expiry of a pool's lease changed.

    Contains the Unix time at which the pool ends itself if nothing changes, by idle time-out or time to live; None for
    never.
    """

    ends_at: float | None


@value(kw_only=True)
class PriceNews(Event):
    """Event: the price of the pool's machines changed. Contains the US dollars per hour from now on."""

    hourly: float


@value(kw_only=True)
class BudgetNews(Event):
    """Event: the state of a pool's budget in US dollars changed.

    ``ends_at``: Unix time of the teardown if the user does not answer.
    """

    budget: float
    state: outcomes.BudgetStatus
    ends_at: float | None = None


@value(kw_only=True)
class UnfetchedNews(Event):
    """Event: the unfetched results on the nodes changed. Contains the size of these results in bytes, by run."""

    runs: dict[str, int]


@value(kw_only=True)
class OutputFetched(Event):
    """Event: an output file was downloaded, or its download failed: ``error`` is the reason."""

    run: str
    node: int
    path: str
    size: int
    target: str
    error: str = ""


THIS_MACHINE = "this machine"  # place of a copy on the client if all nodes are on the client's machine


@value(kw_only=True)
class CheckpointSaved(Event):
    """Event: a newer complete checkpoint of a run was copied to the client, or to a store.

    Attributes:
        name: Path of the checkpoint below the ranks' working folder.
        size: Size in bytes.
        saved_at: Unix time at which the ranks saved it.
        place: Place of the copy: "this client", ``THIS_MACHINE``, or the URL of the store.
    """

    run: str
    name: str
    size: int
    saved_at: float
    place: str


@value(kw_only=True)
class PoolEnded(Event):
    """Event: a pool's teardown ended. ``receipt``: see :class:`skyward_core.store.receipts_and_bills.Receipt`."""

    written_as: ClassVar[str] = "PoolGone"
    receipt: dict[str, Any]


def attempt_end_row(end: AttemptEnded) -> dict[str, Any]:
    """Return the end of an attempt in JSON types, for the run's row in the ledger."""
    row = to_json_types(replace(end, message=end.message[:MAX_ROW_TEXT]))
    return {name: row[name] for name in row.keys() - {"pool", "run"}}


def to_json(event: Event) -> dict[str, Any]:
    """Return an event in JSON types, with its kind under "event"."""
    data = {"event": event.written_as or type(event).__name__} | to_json_types(event)
    if (hint := data.get("hint")) is not None:
        data["hint"] = to_json_types(hint)
    if isinstance(event, QueueNews):
        data["waiting"] = [to_json_types(each) for each in event.waiting]
    return data
