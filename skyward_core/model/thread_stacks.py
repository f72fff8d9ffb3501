"""Stacks of the threads of ranks."""

from __future__ import annotations

from typing import NamedTuple

from skyward_core.util.light_dataclass import Value, value


class StackFrame(NamedTuple):
    """One frame of a stack: a function and the line that it executes.

    The text comes from a rank: sanitize it before display.
    """

    function: str
    file: str
    line: int


@value
class ThreadStack(Value):
    """Stack of one thread.

    Attributes:
        name: Name of the thread.
        frames: Frames, the innermost first.
        holds_gil: Whether the thread held the GIL, if known.
        child: Process id if the thread belongs to a child of the rank's process; otherwise 0.
    """

    name: str
    frames: tuple[StackFrame, ...]
    holds_gil: bool = False
    child: int = 0


@value
class RankStack(Value):
    """Stacks of one process of a rank.

    Attributes:
        rank: The rank.
        number: 0 for the rank's main process; higher for further processes of a rank that runs several calls at a time.
        node: Node of the rank.
        at: "running", "idle", "starting", "ending" or "gone"; "silent" if the node does not answer.
        runs: Ids of the runs for which the process works.
        pid: Process id.
        how: How the stack was read: "py-spy" or "signal"; "" if the stack is unknown.
        why: Reason why the stack is unknown.
        answers: Whether the process can write its stack when it receives a signal.
        threads: Threads, the main thread first.
        exception: Exception that the process handles, for example in a ``finally`` block; "" for none.
    """

    rank: int
    number: int
    node: int
    at: str
    runs: tuple[str, ...] = ()
    pid: int = 0
    how: str = ""
    why: str = ""
    answers: bool = False
    threads: tuple[ThreadStack, ...] = ()
    exception: str = ""


@value
class Stacks(Value):
    """Stacks of a pool at one time.

    Attributes:
        at: Unix time.
        ranks: One entry for each process, sorted by rank.
        run: Id of the run whose stacks were requested; "" for all of the pool.
        returned: Ranks of the run whose function has already ended.
        idle: Idle processes, if the run does not use all ranks.
    """

    at: float
    ranks: tuple[RankStack, ...]
    run: str = ""
    returned: tuple[int, ...] = ()
    idle: tuple[RankStack, ...] = ()

    @property
    def askable(self) -> list[int]:
        """Ranks whose stack is unknown, but that write the stack when they receive a signal."""
        return sorted({each.rank for each in self.unknown if each.answers})

    @property
    def unknown(self) -> list[RankStack]:
        """Processes whose stack is unknown and relevant. Ended processes and returned ranks are not included."""
        return [each for each in self.ranks if not each.how and each.at != "gone" and each.rank not in self.returned]
