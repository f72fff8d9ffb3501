"""Typed dictionaries of all frames; for type checkers, never sent to nodes.

Nothing loads these modules when a program runs: who needs one imports it for type checkers only. Who takes frames off a
stream gets headers of no type (``frame_codec.AnyHeader``), says once which side they come from, and what handles one
kind says which: a key that its kind has not is an error of the type checker then. A test compares all of it with the
tables.

Names begin with who says it; unions of what each side says are at the end of its module.
"""

from typing import Any, Literal, NotRequired, TypedDict

# Without annotations from __future__: as text they would not say at run time, to the test, which keys may be missing.

BlobReference = tuple[str, int]  # the name of some bytes, made of their content, and how many they are
RankInfo = dict[str, Any]  # a rank's InstanceInfo
LogSizes = dict[str, int]  # log file -> bytes
LogSpans = dict[str, list[int]]  # log file -> from where to where
MetricSummaries = dict[str, list[float | None]]  # name -> the last, the least and the greatest of its numbers
OutcomeKind = Literal["returned", "raised", "exited", "lost", "collateral"]
Phase = Literal["", "starting", "importing", "joining", "running", "paused"]  # agents tell of no others
NoticeKind = Literal["terminate", "stop", "hibernate", "rebalance"]
RunKind = Literal["", "broadcast", "single", "gather", "sweep", "map"]


class SummaryKeys(TypedDict):
    """What a value looks like; see ``model.outcome.Summary``."""

    type: str
    text: str
    json: NotRequired[Any]
    is_json: NotRequired[bool]
    size: NotRequired[int]


class ErrorKeys(TypedDict):
    """A failure in words; see ``model.outcome.ErrorInfo``."""

    type: str
    message: str
    traceback: NotRequired[str]


class Timed(TypedDict, total=False):
    """What may say when it happened: Unix time in seconds, by the node's clock."""

    at: float


class ResultFields(TypedDict, total=False):
    """What outcomes, and what was yielded, may say beside how the value looks."""

    error: ErrorKeys | None
    seconds: float
    exit_code: int | None
    signal: int | None
    file: str
    size: int
    log: LogSpans
    items: int
    last: SummaryKeys | None
    begun: bool
    numbers: MetricSummaries


class SummarizedResultFields(ResultFields, total=False):
    """The same with how it looks."""

    summary: SummaryKeys | None


class CredentialKeys(TypedDict):
    """A certificate with its key, and whose signature it bears."""

    authority: str
    certificate: str
    key: str


class QueueRequestKeys(TypedDict):
    """A run that waits for nodes: for so many (0 for all), or for these."""

    run: str
    name: str
    nodes: int
    only: list[int]


class OutputKeys(TypedDict):
    """A file that ranks wrote."""

    path: str
    version: str


# Without annotations from __future__: see there.


class ThreadKeys(TypedDict):
    """Where a thread is: function, file and line of each frame, the innermost first."""

    name: str
    frames: list[list[Any]]
    gil: bool
    child: NotRequired[int]


class RankStacksKeys(TypedDict):
    """Where the threads of a rank's worker are, or why that is not known."""

    rank: int
    number: int
    at: Literal["gone", "starting", "idle", "running", "ending"]
    runs: list[str]
    pid: NotRequired[int]
    how: NotRequired[Literal["py-spy", "signal"]]
    why: NotRequired[str]
    answers: NotRequired[bool]
    threads: NotRequired[list[ThreadKeys]]


class ClientStacks(TypedDict):
    t: Literal["stacks"]
    id: int
    ranks: NotRequired[list[int]]
    signal: NotRequired[bool]


class ClientDebug(TypedDict):
    t: Literal["debug"]
    id: int
    rank: int
    who: str
    text: NotRequired[str]
    eof: NotRequired[bool]


class ClientStill(TypedDict):
    t: Literal["still"]
    seconds: float


class ClientProfile(TypedDict):
    t: Literal["profile"]
    id: int
    rank: int
    seconds: float


# Without annotations from __future__: see ``protocol.frame_types``.


class AgentOutcome(SummarizedResultFields, Timed):
    t: Literal["outcome"]
    run: str
    i: int
    rank: int
    node: int
    kind: OutcomeKind
    ends: NotRequired[str]


class AgentItem(ResultFields, Timed):
    t: Literal["item"]
    run: str
    i: int
    seq: int
    summary: SummaryKeys | None
    rank: int
    node: NotRequired[int]


class AgentBegan(Timed):
    t: Literal["began"]
    run: str
    i: int
    rank: int
    node: int
    log: NotRequired[LogSizes]


class AgentStale(Timed):
    t: Literal["stale"]
    run: str
    i: int
    why: NotRequired[str]
    spent: NotRequired[bool]


class ValueRequest(TypedDict):
    """Which values of an argument that its client feeds a call waits for: from ``next`` up to ``until``."""

    t: Literal["want"]
    run: str
    i: int
    arg: int
    next: int
    until: int
    again: NotRequired[bool]


class AgentWant(ValueRequest): ...


class RunKeys(TypedDict):
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


class RememberedRun(RunKeys):
    """What an agent remembers of a run."""

    outcomes: list[AgentOutcome]
    began: list[AgentBegan]
    returned: int
    items: NotRequired[list[AgentItem]]
    active: NotRequired[int]


class AgentRun(RunKeys, Timed):
    t: Literal["run"]


class QueuedRunKeys(QueueRequestKeys):
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
    runs: list[RememberedRun]
    now: NotRequired[float]
    phases: NotRequired[list[RankPhaseKeys]]
    pool: NotRequired[str]
    pid: NotRequired[int]
    idle_timeout: NotRequired[float]
    unfetched: NotRequired[LogSizes]
    modules: NotRequired[dict[str, str]]
    cwd: NotRequired[str]
    notices: NotRequired[list[NoticeKeys]]
    knows: NotRequired[list[str]]
    spent: NotRequired[bool]
    members: NotRequired[list[int]]
    queue: NotRequired[list[QueuedRunKeys]]


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
    waiting: list[QueuedRunKeys]


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
    unfetched: NotRequired[LogSizes]
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
    logs: LogSizes
    unfetched: NotRequired[LogSizes]


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


class FetchStatus(TypedDict, total=False):
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


class RunCallCounts(TypedDict):
    """What of a run an agent was given."""

    calls: int
    active: int
    total: int


class WhereAnswer(AgentKnown):
    runs: dict[str, RunCallCounts]


class GangCallCounts(TypedDict):
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
    runs: dict[str, GangCallCounts]


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

RunFrame = AgentOutcome | AgentItem | AgentBegan | AgentStale | AgentRun | AgentWant
LockFrame = AgentGranted | AgentHeld | AgentWanted
QueueFrame = AgentQueue | AgentTurn | AgentDropped
FromAgent = (
    RunFrame
    | LockFrame
    | QueueFrame
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


# Without annotations from __future__: see ``protocol.frame_types``.


class ClientTail(TypedDict):
    t: Literal["tail"]
    cursors: NotRequired[LogSizes]


class CallKeys(TypedDict):
    """What is to be run, and how."""

    t: Literal["call"]
    run: str
    i: int
    fn: BlobReference
    args: BlobReference
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
    """A value of an argument that its client feeds, or a part of one; see :class:`...runtime.fed.StreamedIterator`."""

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


class ClientPeers(CredentialKeys):
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


class ClientEnqueue(QueueRequestKeys):
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


class GangPeers(TypedDict):
    """How the nodes of a gang hear one another: node, address and port of each."""

    key: str
    nodes: list[tuple[int, str, int]]


class ClientGang(TypedDict):
    t: Literal["gang"]
    epoch: int
    info: RankInfo
    hooks: NotRequired[bool]
    apps: NotRequired[bool]
    joins: NotRequired[bool]
    alone: NotRequired[bool]
    secrets: NotRequired[list[str]]
    fresh: NotRequired[bool]
    line: NotRequired[GangPeers]


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


# Without annotations from __future__: as text they would not say at run time, to the test, which keys may be missing.


class StartOptions(TypedDict, total=False):
    """What a worker was started with, for an agent that has not started it."""

    env: dict[str, str]


class LifeKeys(TypedDict):
    """Which life a worker has with others of its block of ranks."""

    name: str
    first: int
    width: int


class PluginErrorKeys(ErrorKeys):
    """One of a plugin's ``around_app``."""

    plugin: NotRequired[str]


class ExitStatus(TypedDict):
    """How a process ended."""

    exit_code: int | None
    signal: int | None


class EndDetails(TypedDict):
    """The part of an outcome that says how its call ended, where its worker does not."""

    kind: OutcomeKind
    error: NotRequired[ErrorKeys | None]
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


class JournalGiven(TypedDict):
    """A worker has been given a call."""

    t: Literal["given"]
    slot: int
    rank: int
    log: LogSizes
    call: ClientCall


class JournalPartEnded(TypedDict):
    """A part of a call has ended that runs on a block of ranks."""

    t: Literal["ended"]
    outcome: AgentOutcome


JournalFrame = JournalGiven | JournalPartEnded | AgentOutcome | ClientAck


# -- what workers, and the process around them, say to their agent ---------------------------------------


class WorkerWant(ValueRequest): ...


class WorkerHello(TypedDict):
    t: Literal["hello"]
    pid: int
    phase: NotRequired[str]
    age: NotRequired[float]
    state: NotRequired[Literal["fresh", "entering", "entered"]]
    env: NotRequired[dict[str, str]]
    epoch: NotRequired[int]
    info: NotRequired[RankInfo]
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


class WorkerOutcome(SummarizedResultFields):
    t: Literal["outcome"]
    run: str
    i: int
    kind: OutcomeKind
    unusable: NotRequired[bool]
    ends: NotRequired[str]
    left: NotRequired[bool]
    joined: NotRequired[bool]


class WorkerItem(SummarizedResultFields):
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
    error: ErrorKeys


class WorkerReady(TypedDict):
    t: Literal["ready"]
    epoch: int


class WorkerEntered(TypedDict):
    t: Literal["entered"]


# -- what an agent says to workers -----------------------------------------------------------------------


class ToWorkerSetup(TypedDict):
    t: Literal["setup"]
    info: RankInfo
    epoch: NotRequired[int]
    own: NotRequired[RankInfo]
    gang: NotRequired[bool]
    apart: NotRequired[bool]
    hooks: NotRequired[bool]
    apps: NotRequired[bool]
    joins: NotRequired[bool]
    alone: NotRequired[bool]
    secrets: NotRequired[list[str]]
    failed: NotRequired[PluginErrorKeys]
    life: NotRequired[LifeKeys]
    sharers: NotRequired[int]
    devices: NotRequired[str]


class ToWorkerPlace(TypedDict):
    t: Literal["place"]
    info: RankInfo
    own: RankInfo


class ToWorkerCall(CallKeys): ...


class ToWorkerCredit(Credit): ...


class ToWorkerFeed(Feed): ...


class ToWorkerExit(TypedDict):
    t: Literal["exit"]


# -- all that one side says ------------------------------------------------------------------------------

PluginContextFrame = WorkerEntering | WorkerFailed | WorkerEntered
RankFrame = WorkerOutcome | WorkerItem | WorkerWant | WorkerPhase | WorkerModules | WorkerSecrets | WorkerReady
FromWorker = WorkerHello | RankFrame | PluginContextFrame
ToWorker = ToWorkerSetup | ToWorkerPlace | ToWorkerCall | ToWorkerCredit | ToWorkerFeed | ToWorkerExit


# Without annotations from __future__, as in frame_types.


class FileBlob(TypedDict):
    t: Literal["blob"]
    name: str


class FilePut(TypedDict):
    t: Literal["put"]
    name: str
    size: int


class FileResult(TypedDict):
    t: Literal["result"]
    name: str
    at: int


class FileOutput(OutputKeys):
    t: Literal["output"]
    at: int


class FileWhole(TypedDict):
    t: Literal["whole"]
    sha256: str


class FileGo(TypedDict):
    t: Literal["go"]


class FileThere(TypedDict):
    t: Literal["there"]


class FileComes(TypedDict):
    t: Literal["comes"]
    size: int


class FileAnswer(TypedDict):
    t: Literal["answer"]
    error: str


FileRequest = FileBlob | FilePut | FileResult | FileOutput
FileFrame = FileRequest | FileGo | FileWhole | FileThere | FileComes | FileAnswer


# Without annotations from __future__: as text they would not say at run time, to the test, which keys may be missing.


class HostFacts(TypedDict):
    """Of a host that can hold nothing of ours some is missing; what is asked of a pool is told where it was asked."""

    python: str
    version: list[int]
    home: str
    hostname: str
    system: str
    machine: str
    address: str
    port: int
    time: float
    root: str
    unusable: list[str]
    doubted: str
    gpus: list[str]
    nvml: bool
    cpus: int | None
    free: NotRequired[int]
    bundle: NotRequired[bool]
    rest: NotRequired[bool]
    socket: NotRequired[str]
    shared: NotRequired[bool]
    running: NotRequired[bool]
    kept: NotRequired[dict[str, Any]]
    orphans: NotRequired[list[int]]
    left: NotRequired[bool]
    ended: NotRequired[str]
    ended_at: NotRequired[float]


class EnvironmentDone(TypedDict):
    python: str
    installed: dict[str, str]  # where packages are asked for: version by name


class ManifestDone(TypedDict):
    folder: str
    wanted: list[int]
    doubtful: list[tuple[int, str]]
    current: NotRequired[bool]  # the host has all of it


class GpusDone(TypedDict):
    gpus: list[str]


class LookDone(TypedDict):
    uses: list[dict[str, Any]]  # as model.gpu_use.GpuUse has them
    why: str


class ProbeDone(TypedDict):
    gpus: list[tuple[str, float]]
    tflops: float
    disk: float
    port: int
    time: float
    whys: dict[str, str]


class SendDone(TypedDict):
    rate: float
    why: str


class ReachDone(TypedDict):
    reached: list[bool]


class AgentDone(TypedDict):
    socket: str
