"""What the ranks printed in a run, from the client's files: both streams in their true order, line by line with times.

It reads as a stream: of a log of gigabytes, little is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ..model.errors import UsageError
from ..model.hint import Hint
from ..views.logs import About, Line, Lines
from ..views.weave import STREAMS, Piece, Place, place_of_end, weave
from ..wire.marks import BEFORE, decode
from ..wire.node_paths import ERR, MARKS, OUT
from ..wire.value_checks import is_log
from .archive import log_files, rank_of
from .home import pool_dir
from .ledger import Ledger
from .ledger_rows import RunRow


class Part(NamedTuple):
    """What one worker printed in a run: offsets in its two files.

    Attributes:
        stem: the files' name without its ending.
    """

    stem: str
    start: Place
    end: Place


class Batch(NamedTuple):
    """Lines that came together.

    Attributes:
        number: of the first, from 0.
        texts: they; none of many is made before somebody reads it.
        about: what is known of them.
        size: bytes that were read for them.
    """

    number: int
    texts: Sequence[str]
    about: About
    size: int


class RunLogs:
    """The logs of one run, as the ledger and the client's files have them now.

    Args:
        run: its id.
        check: called again and again while the ledger is read, of which there may be much; what it raises ends that.

    Raises:
        UsageError: no such run.

    Attributes:
        folder: where the files are.
        parts: rank -> what its workers printed.
    """

    def __init__(self, ledger: Ledger, run: str, check: Callable[[], None] = lambda: None) -> None:
        self._check = check
        row = ledger.run(run)
        if row is None:
            raise UsageError(f"no run {run!r} in the ledger", hint=Hint("list-all"))
        self.folder = pool_dir(ledger.pool(row.token).key) / "logs"
        calls = self._calls(ledger, row)
        if row.state == "running":
            calls += self._under_way(ledger, row, calls)
        else:
            calls += self._of_lost(ledger, row)
        self.parts: dict[int, list[Part]] = {}
        for part in joined(calls):
            self.parts.setdefault(rank_of(part.stem), []).append(part)

    def pieces(self, rank: int) -> Iterator[Piece]:
        """What a rank printed, in the order in which it did."""
        for part in self.parts.get(rank, ()):
            yield from weave(self.folder, *part)

    def lines(self, rank: int) -> Iterator[Line]:
        """The same by lines, numbered from 0, an unfinished last line of each stream at the end."""
        for batch in self.batches(rank):
            for number, text in enumerate(batch.texts, batch.number):
                yield Line(number, text, batch.about)

    def batches(self, rank: int) -> Iterator[Batch]:
        """The same lines as they came together, for who looks at few of them; one may have none."""
        number = 0
        for part in self.parts.get(rank, ()):
            split = {stream: Lines() for stream in STREAMS}
            about = {stream: About(stream) for stream in STREAMS}
            for piece in weave(self.folder, *part):
                about[piece.stream] = About(piece.stream, piece.at, piece.run)
                texts = split[piece.stream].take(piece.data)
                yield Batch(number, texts, about[piece.stream], len(piece.data))
                number += len(texts)
            for stream in STREAMS:
                if texts := split[stream].end():
                    yield Batch(number, texts, about[stream], 0)
                    number += len(texts)

    def _calls(self, ledger: Ledger, row: RunRow) -> list[Part]:
        """What each call of a run that has ended printed."""
        found = []
        for _, log in ledger.each_outcome(row.run):
            self._check()
            # Names came from a node, perhaps to a release that believed it.
            for stem in sorted({name.rpartition(".")[0] for name in log if is_log(name)}):
                (out, err), (out_end, err_end) = zip(
                    *(log.get(f"{stem}.{name}", (0, 0)) for name in STREAMS), strict=True
                )
                if out_end > out or err_end > err:
                    found.append(Part(stem, (out, err), (out_end, err_end)))
        return found

    def _under_way(self, ledger: Ledger, row: RunRow, ended: list[Part]) -> list[Part]:
        """What calls of a running run have printed that have not ended: it follows what ended before."""
        starts: dict[str, Place] = {}
        for other in ledger.runs(row.token):
            for part in ended if other.run == row.run else self._calls(ledger, other):
                at = starts.get(part.stem, (0, 0))
                starts[part.stem] = (max(at[0], part.end[0]), max(at[1], part.end[1]))
        found = []
        stems = {path.stem for path in log_files(self.folder) if path.suffix in (OUT, ERR)}
        for stem in sorted(stems):
            start = starts.get(stem, (0, 0))
            out, err = place_of_end(self.folder, stem)
            end = max(start[0], out), max(start[1], err)
            if end != start:
                found.append(Part(stem, start, end))
        return found

    def _of_lost(self, ledger: Ledger, row: RunRow) -> list[Part]:
        """What calls printed whose nodes were lost, and so told nobody how far their logs go: as the marks have it."""
        lost: set[int] = set()
        for outcome, _ in ledger.each_outcome(row.run):
            self._check()
            if outcome.kind == "lost":
                lost.add(outcome.rank)
        stems = {path.stem for path in log_files(self.folder)} if lost else set()
        found = ((stem, self._marked(stem, row.run)) for stem in sorted(stems) if rank_of(stem) in lost)
        return [Part(stem, *ends) for stem, ends in found if ends is not None]

    def _marked(self, stem: str, run: str) -> tuple[Place, Place] | None:
        """From where to where a worker's marks say that a run wrote; None where they say nothing of it."""
        try:
            marks = decode((self.folder / f"{stem}{MARKS}").read_bytes())
        except FileNotFoundError:
            return None
        start: Place | None = None
        end = last = (0, 0)
        follows = False  # whether what comes behind the last mark is the run's
        for mark in marks:
            at = (mark.out, mark.err)
            if mark.run == run:
                start, end = start or (at if mark.kind == BEFORE else last), at
            elif follows:
                end = at
            follows, last = mark.run == run and mark.kind == BEFORE, at
        if marks and marks[-1].run == run:
            end = place_of_end(self.folder, stem)  # nobody came after it
        return None if start is None else (start, end)


def joined(parts: list[Part]) -> list[Part]:
    """In order; those of calls that ran one after the other, or side by side, as one."""
    out: list[Part] = []
    for stem, start, end in sorted(parts):
        if out and out[-1].stem == stem and start[0] <= out[-1].end[0] and start[1] <= out[-1].end[1]:
            last = out.pop()
            end = max(end[0], last.end[0]), max(end[1], last.end[1])
            start = min(start[0], last.start[0]), min(start[1], last.start[1])
        out.append(Part(stem, start, end))
    return out
