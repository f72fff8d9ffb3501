"""Which ranks have been quiet for longer than they usually are: no line, no number, no work of the processor. Pure, but
for what it remembers.

Quiet is not hung: code may compile for long, or sleep. So a time is told, and nothing is concluded from it.
"""

from __future__ import annotations

FLOOR = 60.0  # seconds of silence that mean nothing
UNKNOWN = 300.0  # the same of a rank of which next to nothing has been heard
TIMES = 5  # as long as it usually is quiet
KNOWN = 3  # signs after which "usually" means something
FADES = 0.9  # of what was usual is left with each sign: how a run begins is not how it goes on
APART = 1.5  # seconds between two words on what it took of the processor
WORKS = 0.1  # of a processor that code takes which does more than wait: threads that look after things take a bit, too
RUNS = 64  # of one pool


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
    """

    def __init__(self) -> None:
        self.stands = False
        self._went_on = 0.0
        self._runs: dict[str, dict[int, Rhythm]] = {}
        self._spent: dict[int, tuple[float, float]] = {}  # when, and what of the processor by then
        self._worked: dict[int, float] = {}

    def heard(self, run: str, rank: int, at: float) -> None:
        """A rank has said something in a run."""
        ranks = self._runs.get(run)
        if ranks is None:
            if len(self._runs) >= RUNS:
                self._runs = dict(list(self._runs.items())[1 - RUNS :])
            ranks = self._runs.setdefault(run, {})
        rhythm = ranks.get(rank)
        if rhythm is None:
            rhythm = ranks.setdefault(rank, Rhythm())
        rhythm.heard(at)

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
