"""The stacks of one rank: by py-spy where that may read it, else, where a person has said so, by a signal."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import by_signal, py_spy
from .texts import Places, Thread, bounded, with_known_files

PATIENCE = 2.0  # seconds that a rank may take to answer
FRAMES = 3000  # of one rank's threads


class RankProcess(NamedTuple):
    """A rank's process.

    Attributes:
        file: where it writes its answer to the signal.
        places: where its files are.
    """

    pid: int
    file: str
    places: Places


def take(process: RankProcess, program: str, *, signal: bool) -> dict[str, Any]:
    """What an answer tells of the rank's threads. Blocks, for a few times :data:`PATIENCE` at most.

    Args:
        program: py-spy, or "".
        signal: whether the rank may be sent one.
    """
    if program:
        try:
            threads = py_spy.stacks(program, process.pid, PATIENCE)
            return {"how": "py-spy", "threads": _told(threads, process)}
        except py_spy.CannotRead as error:
            why = str(error)
    else:
        why = py_spy.ABSENT
    refusal = by_signal.refusal(process.pid, process.file)
    if refusal == by_signal.REPLACED:
        return {"why": refusal, "answers": False}  # says more than what py-spy finds in such a process
    if not signal:
        return {"why": why, "answers": not refusal}
    try:
        threads = by_signal.stacks(process.pid, process.file, PATIENCE)
    except by_signal.Unanswered as error:
        return {"why": f"{why}; by a signal: {error}"}
    return {"how": "signal", "threads": _told(threads, process)}


def _told(threads: list[Thread], process: RankProcess) -> list[Thread]:
    return with_known_files(bounded(threads, FRAMES), process.places)
