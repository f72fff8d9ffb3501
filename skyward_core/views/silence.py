"""Which ranks have been quiet for longer than they usually are: no line, no number, no work of the processor. Pure, but
for what it remembers.

Quiet is not hung: code may compile for long, or sleep. So a time is told, and nothing is concluded from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

FLOOR = 60.0  # seconds of silence that mean nothing
UNKNOWN = 300.0  # the same of a rank of which next to nothing has been heard
TIMES = 5  # as long as it usually is quiet
KNOWN = 3  # signs after which "usually" means something
FADES = 0.9  # of what was usual is left with each sign: how a run begins is not how it goes on
APART = 1.5  # seconds between two words on what it took of the processor
WORKS = 0.1  # of a processor that code takes which does more than wait: threads that look after things take a bit, too
RUNS = 64  # of one pool
BACK = 2.0  # seconds by which lines that came later may be older, though nobody has set their node's clock


class Clocks(NamedTuple):
    """Who is connected to ranks knows of clocks.

    Attributes:
        now: ours, Unix time.
        ahead: seconds by which ours is ahead of the clock of a rank's node, as far as that is known.
    """

    now: Callable[[], float]
    ahead: Callable[[int], float]


class _HeardFile(NamedTuple):
    """What ranks print into one file, in the order in which they do.

    Attributes:
        newest: of its times, by the node's clock.
        ahead: what was known of that clock then.
        step: seconds by which it has been set back since.
    """

    newest: float
    ahead: float
    step: float


class Rhythm:
    """Of one rank in one run.

    Attributes:
        last: when it was heard last, Unix time.
        usual: the longest pause of late, in seconds.
        signs: how often it was heard after a pause.
    """

    __slots__ = ("_sign", "last", "signs", "usual")

    def __init__(self) -> None:
        self.last = self._sign = 0.0
        self.usual = 0.0
        self.signs = 0

    def went_on(self, at: float) -> None:
        """It stood still until then, or waited for one that did: no silence of its own, and nothing that is usual."""
        self.last = max(self.last, at)
        if self._sign:
            self._sign = max(self._sign, at)

    def clock_was_set(self, seconds: float) -> None:
        """What it was heard at is so much later."""
        self.last += seconds
        self._sign += seconds if self._sign else 0.0

    def heard(self, at: float) -> None:
        """There was a line, or a number."""
        pause, self.last = at - self.last, max(self.last, at)
        if at - self._sign < 1:  # all that comes within a second is one sign
            return
        if self._sign:
            self.usual = max(pause, self.usual * FADES)
            self.signs += 1
        self._sign = at

    @property
    def patience(self) -> float:
        """Seconds of silence that are nothing to speak of."""
        return max(FLOOR if self.signs >= KNOWN else UNKNOWN, TIMES * self.usual)


class Rhythms:
    """Of all ranks of a pool, in its latest runs. One thread writes, others may read.

    Attributes:
        stands: whether a rank stands still at a breakpoint; the others wait for it sooner or later.
        clocks: of who is connected to the ranks; None where times are taken as they are, as of a record.
    """

    def __init__(self) -> None:
        self.stands = False
        self.clocks: Clocks | None = None
        self._sources: dict[str, _HeardFile] = {}
        self._went_on = 0.0
        self._runs: dict[str, dict[int, Rhythm]] = {}
        self._spent: dict[int, tuple[float, float]] = {}  # when, and what of the processor by then
        self._worked: dict[int, float] = {}

    def heard(self, run: str, rank: int, at: float, source: str = "") -> None:
        """A rank has said something in a run.

        Args:
            at: Unix time by our clock; by its node's where there is a source.
            source: the file that it stands in.
        """
        if source and self.clocks is not None:
            at = self._by_our_clock(self.clocks, rank, at, source)
        ranks = self._runs.get(run)
        if ranks is None:
            if len(self._runs) >= RUNS:
                self._runs = dict(list(self._runs.items())[1 - RUNS :])
            ranks = self._runs.setdefault(run, {})
        rhythm = ranks.get(rank)
        if rhythm is None:
            rhythm = ranks.setdefault(rank, Rhythm())
        rhythm.heard(at)

    @staticmethod
    def _step_of(known: _HeardFile | None, clocks: Clocks, at: float, ahead: float) -> float:
        """By how much more our clock is ahead of a node's than is known."""
        step = known.step if known is not None and known.ahead == ahead else 0.0
        set_back = known is not None and at < known.newest - BACK
        late = clocks.now() - ahead - at
        return late if set_back or late < step else step  # nothing comes before it is printed

    def _by_our_clock(self, clocks: Clocks, rank: int, at: float, source: str) -> float:
        """When something was printed that comes now, or has waited for us. Lines of a file are in order: where one is
        older than the one before it, or not printed yet, somebody has set the node's clock."""
        ahead = clocks.ahead(rank)
        step = self._step_of(self._sources.get(source), clocks, at, ahead)
        self._sources[source] = _HeardFile(at, ahead, step)
        return at + ahead + step

    def clock_was_set(self, seconds: float) -> None:
        """Somebody has set our clock forward by so much: what was heard is no longer ago for that."""
        self._went_on += seconds
        self._worked = {rank: at + seconds for rank, at in self._worked.items()}
        self._spent = {rank: (at + seconds, spent) for rank, (at, spent) in self._spent.items()}
        for ranks in list(self._runs.values()):
            for rhythm in list(ranks.values()):
                rhythm.clock_was_set(seconds)

    def spent(self, rank: int, seconds: float, at: float) -> None:
        """What a rank has taken of the processor by now: whoever works is not quiet."""
        before, spent = self._spent.get(rank, (at, seconds))
        if at - before < APART and rank in self._spent:
            return  # too near to say how much that is
        self._spent[rank] = (at, seconds)
        if seconds - spent > WORKS * (at - before):
            self._worked[rank] = at

    def stand(self, still: bool, at: float) -> None:
        """Some rank stands still, or none does any more; told with each phase of any.

        Args:
            at: Unix time by our clock.
        """
        if self.stands and not still:
            self._went_on = at
            for ranks in list(self._runs.values()):
                for rhythm in list(ranks.values()):
                    rhythm.went_on(at)
        self.stands = still

    def quiet(self, run: str, rank: int, began: float, now: float) -> float | None:
        """For how many seconds a rank has been quiet, if that is longer than it usually is.

        Args:
            began: when its function did.
        """
        if self.stands:
            return None
        rhythm = self._runs.get(run, {}).get(rank) or _NEVER
        silent = now - max(rhythm.last, began, self._worked.get(rank, 0.0), self._went_on)
        return silent if silent > rhythm.patience else None


_NEVER = Rhythm()
