"""What an agent says to clients, as type checkers see it; see :mod:`.frame_types`."""

# Without annotations from __future__: see :mod:`.frame_types`.
from typing import Literal, NotRequired, TypedDict

from .frame_types import (
    Kind,
    NoticeKind,
    OutputKeys,
    Phase,
    Queued,
    RunKind,
    Sizes,
    SummaryWords,
    Timed,
    Told,
    ToldMore,
)
from .inside_frame_types import RankStacksKeys


class AgentOutcome(Told, Timed):
    t: Literal["outcome"]
    run: str
    i: int
    rank: int
    node: int
    kind: Kind
    ends: NotRequired[str]


class AgentItem(ToldMore, Timed):
    t: Literal["item"]
    run: str
    i: int
    seq: int
    summary: SummaryWords | None
    rank: int
    node: NotRequired[int]


class AgentBegan(Timed):
    t: Literal["began"]
    run: str
    i: int
    rank: int
    node: int
    log: NotRequired[Sizes]


class AgentStale(Timed):
    t: Literal["stale"]
    run: str
    i: int
    why: NotRequired[str]
    spent: NotRequired[bool]


class Want(TypedDict):
    """Which values of an argument that its client feeds a call waits for: from ``next`` up to ``until``."""

    t: Literal["want"]
    run: str
    i: int
    arg: int
    next: int
    until: int
    again: NotRequired[bool]


class AgentWant(Want): ...


class Record(TypedDict):
    """What a run is."""

    run: str
    function: str
    kind: RunKind
    total: int
    opened_at: float
    nodes: NotRequired[list[int]]
    over: NotRequired[bool]
    job: NotRequired[str]
    more: NotRequired[bool]
    width: NotRequired[int]


class Remembered(Record):
    """What an agent remembers of a run."""

    outcomes: list[AgentOutcome]
    began: list[AgentBegan]
    returned: int
    items: NotRequired[list[AgentItem]]
    active: NotRequired[int]


class AgentRun(Record, Timed):
    t: Literal["run"]


class QueuedKeys(Queued):
    """As the head tells of it, by its clock."""

    since: float
    who: str


class RankPhaseKeys(TypedDict):
    """What a rank is at, since so many seconds."""

    rank: int
    phase: Phase
    age: float


class AgentPhase(RankPhaseKeys):
    t: Literal["phase"]


class NoticeKeys(TypedDict):
    """What is said of a machine's end ahead of it."""

    kind: NoticeKind
    left: float | None


class AgentNotice(NoticeKeys):
    t: Literal["notice"]


class AgentWelcome(TypedDict):
    t: Literal["welcome"]
    version: int
    epoch: int
    broken: str
    node: int
    address: str
    ranks_per_node: int
    lease: float | None
    runs: list[Remembered]
    now: NotRequired[float]
    phases: NotRequired[list[RankPhaseKeys]]
    pool: NotRequired[str]
    pid: NotRequired[int]
    idle_timeout: NotRequired[float]
    unfetched: NotRequired[Sizes]
    modules: NotRequired[dict[str, str]]
    cwd: NotRequired[str]
    notices: NotRequired[list[NoticeKeys]]
    knows: NotRequired[list[str]]
    spent: NotRequired[bool]
    members: NotRequired[list[int]]
    queue: NotRequired[list[QueuedKeys]]


class AgentModules(TypedDict):
    t: Literal["modules"]
    files: dict[str, str]


class AgentMetrics(TypedDict):
    t: Literal["metrics"]
    at: int
    why: NotRequired[str]


class AgentLog(TypedDict):
    t: Literal["log"]
    f: str
    at: int


class AgentData(TypedDict):
    t: Literal["data"]
    id: int
    last: bool
    error: NotRequired[str]
    sha256: NotRequired[str]


class AgentGang(TypedDict):
    t: Literal["gang"]
    epoch: int
    broken: str
    spent: NotRequired[bool]
    members: NotRequired[list[int]]
    ask: NotRequired[bool]


class AgentGranted(TypedDict):
    t: Literal["granted"]
    unclean: bool


class AgentHeld(TypedDict):
    t: Literal["held"]
    by: str


class AgentQueue(TypedDict):
    t: Literal["queue"]
    waiting: list[QueuedKeys]


class AgentTurn(TypedDict):
    t: Literal["turn"]
    run: str


class AgentDropped(TypedDict):
    t: Literal["dropped"]
    run: str
    by: str


class AgentPong(TypedDict):
    t: Literal["pong"]
    lease: float | None
    unfetched: NotRequired[Sizes]
    processor: NotRequired[dict[str, float]]
    id: NotRequired[int]


class AgentKnown(TypedDict):
    t: Literal["known"]
    id: int
    error: NotRequired[str]
    unreachable: NotRequired[bool]
    forgotten: NotRequired[bool]
    joins: NotRequired[bool]  # to "setup"; agents of earlier releases leave it out


class AgentFormed(TypedDict):
    t: Literal["formed"]
    id: int
    head_addr: str
    head_port: int


class AgentBye(TypedDict):
    t: Literal["bye"]
    logs: Sizes
    unfetched: NotRequired[Sizes]


class AgentEnding(TypedDict):
    t: Literal["ending"]
    by: str
    why: str


class AgentError(TypedDict):
    t: Literal["error"]
    message: str


class AgentWanted(TypedDict):
    t: Literal["wanted"]


# -- what it says in answer, by what it was asked --------------------------------------------------------


class Fetched(TypedDict, total=False):
    """What became of a file's way to a node: it is there where no error is told."""

    error: str
    unreachable: bool


class ClaimAnswer(AgentKnown):
    calls: list[int]


class PortsAnswer(AgentKnown):
    ports: list[int]
    accelerators: int
    line: int


class NumberAnswer(AgentKnown):
    epoch: int


class DebugAnswer(AgentKnown):
    over: bool


class PeersAnswer(AgentKnown):
    port: int


class SetupAnswer(AgentKnown):
    env: dict[str, str] | None
    known: bool
    secrets: list[str]
    apps: bool


class Here(TypedDict):
    """What of a run an agent was given."""

    calls: int
    active: int
    total: int


class WhereAnswer(AgentKnown):
    runs: dict[str, Here]


class HereOfGang(TypedDict):
    """What became of the calls of a run that the gang here was given."""

    active: int
    ended: int
    total: int
    kept: str  # the job whose next step the node is kept for; "" for none


class HoldsAnswer(AgentKnown):
    epoch: int
    broken: str
    spent: bool
    members: list[int]
    runs: dict[str, HereOfGang]


class WrittenKeys(OutputKeys):
    """The same with what there is to know of it."""

    size: int
    at: float


class StacksAnswer(AgentKnown):
    ranks: list[RankStacksKeys]


class WrittenAnswer(AgentKnown):
    files: list[WrittenKeys]
    more: int
    folder: str


# -- all that one side says ------------------------------------------------------------------------------

OfRuns = AgentOutcome | AgentItem | AgentBegan | AgentStale | AgentRun | AgentWant
OfLock = AgentGranted | AgentHeld | AgentWanted
OfQueue = AgentQueue | AgentTurn | AgentDropped
FromAgent = (
    OfRuns
    | OfLock
    | OfQueue
    | AgentWelcome
    | AgentLog
    | AgentData
    | AgentGang
    | AgentPhase
    | AgentMetrics
    | AgentModules
    | AgentNotice
    | AgentPong
    | AgentKnown
    | AgentFormed
    | AgentBye
    | AgentEnding
    | AgentError
)
