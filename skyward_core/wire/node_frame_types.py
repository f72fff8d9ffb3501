"""Frames that stay on a node, as type checkers see them: between an agent and the processes that it starts, and what it
writes down for the agent after it. What else is to be said of types: :mod:`.frame_types`.
"""

# Without annotations from __future__: as text they would not say at run time, to the test, which keys may be missing.
from typing import Literal, NotRequired, TypedDict

from .agent_frame_types import AgentOutcome, Want
from .client_frame_types import CallKeys, ClientAck, ClientCall, ClientPeers, Credit, Feed
from .frame_types import ErrorWords, Kind, Place, Sizes, Told


class Started(TypedDict, total=False):
    """What a worker was started with, for an agent that has not started it."""

    env: dict[str, str]


class LifeKeys(TypedDict):
    """Which life a worker has with others of its block of ranks."""

    name: str
    first: int
    width: int


class PluginErrorWords(ErrorWords):
    """One of a plugin's ``around_app``."""

    plugin: NotRequired[str]


class Exit(TypedDict):
    """How a process ended."""

    exit_code: int | None
    signal: int | None


class Ended(TypedDict):
    """The part of an outcome that says how its call ended, where its worker does not."""

    kind: Kind
    error: NotRequired[ErrorWords | None]
    exit_code: NotRequired[int | None]
    signal: NotRequired[int | None]


# -- what an agent asks its helper for, which talks to peers ---------------------------------------------


class HelperPeers(ClientPeers):
    blobs: str
    spool: str
    address: str
    work: str


HelperPull = TypedDict(
    "HelperPull", {"t": Literal["pull"], "id": int, "hash": str, "size": int, "from": tuple[str, int]}
)


# -- what the nodes of a gang say to one another ----------------------------------------------------------


class PeerFailed(TypedDict):
    t: Literal["failed"]
    run: str
    epoch: int
    node: int
    signature: str


class PeerHeard(TypedDict):
    t: Literal["heard"]
    kept: bool


FromPeer = PeerFailed | PeerHeard


# -- what an agent writes down for the one after it ------------------------------------------------------


class Given(TypedDict):
    """A worker has been given a call."""

    t: Literal["given"]
    slot: int
    rank: int
    log: Sizes
    call: ClientCall


class PartEnded(TypedDict):
    """A part of a call has ended that runs on a block of ranks."""

    t: Literal["ended"]
    outcome: AgentOutcome


Written = Given | PartEnded | AgentOutcome | ClientAck


# -- what workers, and the process around them, say to their agent ---------------------------------------


class WorkerWant(Want): ...


class WorkerHello(TypedDict):
    t: Literal["hello"]
    pid: int
    phase: NotRequired[str]
    age: NotRequired[float]
    state: NotRequired[Literal["fresh", "entering", "entered"]]
    env: NotRequired[dict[str, str]]
    epoch: NotRequired[int]
    info: NotRequired[Place]
    modules: NotRequired[dict[str, str]]
    wants: NotRequired[list[WorkerWant]]
    secrets: NotRequired[list[str]]
    hooks: NotRequired[bool]
    apps: NotRequired[bool]
    joins: NotRequired[bool]
    alone: NotRequired[bool]
    life: NotRequired[LifeKeys]


class WorkerModules(TypedDict):
    t: Literal["modules"]
    files: dict[str, str]


class WorkerOutcome(Told):
    t: Literal["outcome"]
    run: str
    i: int
    kind: Kind
    unusable: NotRequired[bool]
    ends: NotRequired[str]
    left: NotRequired[bool]
    joined: NotRequired[bool]


class WorkerItem(Told):
    t: Literal["item"]
    run: str
    i: int
    seq: int


class WorkerPhase(TypedDict):
    t: Literal["phase"]
    phase: str


class WorkerSecrets(TypedDict):
    t: Literal["secrets"]
    values: list[str]


class WorkerEntering(TypedDict):
    t: Literal["entering"]
    plugin: str


class WorkerFailed(TypedDict):
    t: Literal["failed"]
    error: ErrorWords


class WorkerReady(TypedDict):
    t: Literal["ready"]
    epoch: int


class WorkerEntered(TypedDict):
    t: Literal["entered"]


# -- what an agent says to workers -----------------------------------------------------------------------


class ToWorkerSetup(TypedDict):
    t: Literal["setup"]
    info: Place
    epoch: NotRequired[int]
    own: NotRequired[Place]
    gang: NotRequired[bool]
    apart: NotRequired[bool]
    hooks: NotRequired[bool]
    apps: NotRequired[bool]
    joins: NotRequired[bool]
    alone: NotRequired[bool]
    secrets: NotRequired[list[str]]
    failed: NotRequired[PluginErrorWords]
    life: NotRequired[LifeKeys]
    sharers: NotRequired[int]
    devices: NotRequired[str]


class ToWorkerPlace(TypedDict):
    t: Literal["place"]
    info: Place
    own: Place


class ToWorkerCall(CallKeys): ...


class ToWorkerCredit(Credit): ...


class ToWorkerFeed(Feed): ...


class ToWorkerExit(TypedDict):
    t: Literal["exit"]


# -- all that one side says ------------------------------------------------------------------------------

OfApp = WorkerEntering | WorkerFailed | WorkerEntered
OfRank = WorkerOutcome | WorkerItem | WorkerWant | WorkerPhase | WorkerModules | WorkerSecrets | WorkerReady
FromWorker = WorkerHello | OfRank | OfApp
ToWorker = ToWorkerSetup | ToWorkerPlace | ToWorkerCall | ToWorkerCredit | ToWorkerFeed | ToWorkerExit
