"""What frames are made of as type checkers see them. One type for each kind in the tables of :mod:`.messages` stands in
:mod:`.agent_frame_types` or :mod:`.client_frame_types`, by who says it to the other. Those that stay on a node are in
:mod:`.node_frame_types`, those on lines for files in :mod:`.file_frame_types`, those about the inside of ranks in
:mod:`.inside_frame_types`; what a host says before there are frames, in :mod:`.host_fact_types`.

Nothing loads these modules when a program runs: who needs one imports it for type checkers only. Who takes frames off a
stream gets headers of no type (:data:`.frames.Heard`), says once which side they come from, and what handles one kind
says which: a key that its kind has not is an error of the type checker then. A test compares all of it with the tables.

Names begin with who says it; unions of what each side says are at the end of its module.
"""

# Without annotations from __future__: as text they would not say at run time, to the test, which keys may be missing.
from typing import Any, Literal, NotRequired, TypedDict

Blob = tuple[str, int]  # the name of some bytes, made of their content, and how many they are
Place = dict[str, Any]  # a rank's InstanceInfo
Sizes = dict[str, int]  # log file -> bytes
Spans = dict[str, list[int]]  # log file -> from where to where
Numbers = dict[str, list[float | None]]  # name -> the last, the least and the greatest of its numbers
Kind = Literal["returned", "raised", "exited", "lost", "collateral"]
Phase = Literal["", "starting", "importing", "joining", "running", "paused"]  # agents tell of no others
NoticeKind = Literal["terminate", "stop", "hibernate", "rebalance"]
RunKind = Literal["", "broadcast", "single", "gather", "sweep", "map"]


class SummaryWords(TypedDict):
    """What a value looks like; see ``model.outcome.Summary``."""

    type: str
    text: str
    json: NotRequired[Any]
    is_json: NotRequired[bool]
    size: NotRequired[int]


class ErrorWords(TypedDict):
    """A failure in words; see ``model.outcome.ErrorInfo``."""

    type: str
    message: str
    traceback: NotRequired[str]


class Timed(TypedDict, total=False):
    """What may say when it happened: Unix time in seconds, by the node's clock."""

    at: float


class ToldMore(TypedDict, total=False):
    """What outcomes, and what was yielded, may say beside how the value looks."""

    error: ErrorWords | None
    seconds: float
    exit_code: int | None
    signal: int | None
    file: str
    size: int
    log: Spans
    items: int
    last: SummaryWords | None
    begun: bool
    numbers: Numbers


class Told(ToldMore, total=False):
    """The same with how it looks."""

    summary: SummaryWords | None


class PapersKeys(TypedDict):
    """A certificate with its key, and whose signature it bears."""

    authority: str
    certificate: str
    key: str


class Queued(TypedDict):
    """A run that waits for nodes: for so many (0 for all), or for these."""

    run: str
    name: str
    nodes: int
    only: list[int]


class OutputKeys(TypedDict):
    """A file that ranks wrote."""

    path: str
    version: str
