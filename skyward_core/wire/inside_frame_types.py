"""Frames about the inside of ranks as type checkers see them; see :mod:`.frame_types`."""

# Without annotations from __future__: see there.
from typing import Any, Literal, NotRequired, TypedDict


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
