"""Stacks of the threads of ranks, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class StackFrame(NamedTuple):
    """A line of code that has not come to its end. All text is a rank's: filter it where it is shown."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """One thread.

    Attributes:
        frames: the innermost first.
        holds_gil: whether it had the interpreter's lock, where that is known.
        child: the process that it is of, where that is a child of the rank's; else 0.
    """

    name: str
    frames: tuple[StackFrame, ...]
    holds_gil: bool = False
    child: int = 0


@dataclass(frozen=True, slots=True)
class RankStack:
    """One process of a rank.

    Attributes:
        number: 0 for the rank's own; further ones are of ranks that run several calls at a time.
        at: "running", "idle", "starting", "ending", "gone"; "silent" where its node does not tell.
        runs: ids of the runs that it works for.
        how: "py-spy", "signal", or "" where the stack is not known.
        why: why it is not.
        answers: it can be asked by a signal.
        threads: the main thread first.
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


@dataclass(frozen=True, slots=True)
class Stacks:
    """Those of a pool at one time.

    Attributes:
        at: Unix time.
        ranks: one for each process, by rank.
        run: the run that is asked about; "" for the pool.
        returned: ranks of it whose function has come to an end already.
        idle: processes that wait for something to run, for a run that is not on all ranks.
    """

    at: float
    ranks: tuple[RankStack, ...]
    run: str = ""
    returned: tuple[int, ...] = ()
    idle: tuple[RankStack, ...] = ()

    @property
    def askable(self) -> list[int]:
        """Ranks that only a signal could ask."""
        return sorted({each.rank for each in self.unknown if each.answers})

    @property
    def unknown(self) -> list[RankStack]:
        """Processes whose stack is not known, and would tell something: others have none, or nothing left to do."""
        return [each for each in self.ranks if not each.how and each.at != "gone" and each.rank not in self.returned]
