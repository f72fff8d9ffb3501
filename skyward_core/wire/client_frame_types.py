"""What clients ask of an agent, as type checkers see it; see :mod:`.frame_types`."""

# Without annotations from __future__: see :mod:`.frame_types`.
from typing import Literal, NotRequired, TypedDict

from .frame_types import Blob, OutputKeys, PapersKeys, Place, Queued, RunKind, Sizes
from .inside_frame_types import ClientDebug, ClientProfile, ClientStacks, ClientStill


class ClientTail(TypedDict):
    t: Literal["tail"]
    cursors: NotRequired[Sizes]


class CallKeys(TypedDict):
    """What is to be run, and how."""

    t: Literal["call"]
    run: str
    i: int
    fn: Blob
    args: Blob
    rank: NotRequired[int | None]
    timeout: NotRequired[float | None]
    name: NotRequired[str]
    total: NotRequired[int]
    kind: NotRequired[RunKind]
    epoch: NotRequired[int]
    gang: NotRequired[bool]
    fed: NotRequired[bool]
    stream: NotRequired[bool]
    script: NotRequired[bool]
    alone: NotRequired[bool]
    headless: NotRequired[bool]
    nodes: NotRequired[list[int]]
    job: NotRequired[str]
    more: NotRequired[bool]
    next: NotRequired[int]
    taken: NotRequired[int]
    items: NotRequired[int]
    width: NotRequired[int]


class ClientCall(CallKeys): ...


class ClientSource(TypedDict):
    t: Literal["source"]
    hash: str
    name: str


class ClientClaim(TypedDict):
    t: Literal["claim"]
    run: str
    id: NotRequired[int]
    next: NotRequired[int]
    taken: NotRequired[int]


class ClientAck(TypedDict):
    t: Literal["ack"]
    calls: dict[str, list[int] | None]


class Credit(TypedDict):
    """How far a generator may go."""

    t: Literal["credit"]
    run: str
    i: int
    next: int


class ClientCredit(Credit): ...


class Feed(TypedDict):
    """A value of an argument that its client feeds, or a part of one; see :class:`...runtime.fed.FedItems`."""

    t: Literal["fed"]
    run: str
    i: int
    arg: int
    seq: int
    part: int
    more: NotRequired[bool]
    ends: NotRequired[Literal["end", "error"]]


class ClientFeed(Feed): ...


ClientStop = TypedDict(
    "ClientStop",
    {
        "t": Literal["stop"],
        "run": str,
        "i": NotRequired[int],
        "grace": NotRequired[float],
        "why": NotRequired[str],
        "break": NotRequired[int],
    },
)


class ClientFetch(TypedDict):
    t: Literal["fetch"]
    id: int
    f: str
    at: NotRequired[int]


class ClientWritten(TypedDict):
    t: Literal["written"]
    id: int
    patterns: list[str]
    run: NotRequired[str]
    since: NotRequired[float]
    after: NotRequired[str]


class ClientMetrics(TypedDict):
    t: Literal["metrics"]
    at: NotRequired[int]


class ClientOutput(OutputKeys):
    t: Literal["output"]
    id: int
    at: NotRequired[int]


class ClientPeers(PapersKeys):
    t: Literal["peers"]
    id: int


ClientPull = TypedDict(
    "ClientPull", {"t": Literal["pull"], "id": int, "hash": str, "size": int, "from": tuple[str, int] | None}
)


class ClientDrop(TypedDict):
    t: Literal["drop"]
    id: int
    blobs: list[str]


class ClientPorts(TypedDict):
    t: Literal["ports"]
    id: int


class ClientSetup(TypedDict):
    t: Literal["setup"]
    id: int


class ClientWhere(TypedDict):
    t: Literal["where"]
    id: int


class ClientHolds(TypedDict):
    t: Literal["holds"]
    id: int


class ClientEnqueue(Queued):
    t: Literal["enqueue"]
    since: NotRequired[float]


class ClientDequeue(TypedDict):
    t: Literal["dequeue"]
    run: str


class ClientHalt(TypedDict):
    t: Literal["halt"]
    id: int


class ClientShutdown(TypedDict):
    t: Literal["shutdown"]
    drop: NotRequired[list[str]]
    keep: NotRequired[float]


class GangLine(TypedDict):
    """How the nodes of a gang hear one another: node, address and port of each."""

    key: str
    nodes: list[tuple[int, str, int]]


class ClientGang(TypedDict):
    t: Literal["gang"]
    epoch: int
    info: Place
    hooks: NotRequired[bool]
    apps: NotRequired[bool]
    joins: NotRequired[bool]
    alone: NotRequired[bool]
    secrets: NotRequired[list[str]]
    fresh: NotRequired[bool]
    line: NotRequired[GangLine]


class ClientHello(TypedDict):
    t: Literal["hello"]
    watch: NotRequired[bool]
    observer: NotRequired[bool]
    who: NotRequired[str]


class ClientUse(TypedDict):
    t: Literal["use"]


class ClientWarn(TypedDict):
    t: Literal["warn"]
    node: int
    left: float


class ClientPing(TypedDict):
    t: Literal["ping"]
    id: NotRequired[int]


class ClientLock(TypedDict):
    t: Literal["lock"]


class ClientUnlock(TypedDict):
    t: Literal["unlock"]
    unclean: NotRequired[bool]


class ClientHeard(TypedDict):
    t: Literal["heard"]
    epoch: int


class ClientForm(TypedDict):
    t: Literal["form"]
    id: int


class ClientNumber(TypedDict):
    t: Literal["number"]
    id: int
    least: int


# -- all of it -------------------------------------------------------------------------------------------

FromClient = (
    ClientTail
    | ClientMetrics
    | ClientCall
    | ClientSource
    | ClientClaim
    | ClientAck
    | ClientCredit
    | ClientFeed
    | ClientStop
    | ClientFetch
    | ClientWritten
    | ClientOutput
    | ClientStacks
    | ClientProfile
    | ClientDebug
    | ClientStill
    | ClientPeers
    | ClientPull
    | ClientDrop
    | ClientPorts
    | ClientSetup
    | ClientWhere
    | ClientHolds
    | ClientEnqueue
    | ClientDequeue
    | ClientHalt
    | ClientShutdown
    | ClientGang
    | ClientHeard
    | ClientHello
    | ClientUse
    | ClientWarn
    | ClientPing
    | ClientLock
    | ClientUnlock
    | ClientForm
    | ClientNumber
)
