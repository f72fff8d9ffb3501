"""The files that a worker prints into: how long they are, whose bytes stand where, and how long they may get."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress

from ...wire.marks import AFTER, Marker
from ...wire.node_paths import ERR, MARKS, METRICS, OUT, log_stem
from .calls import Call, Key
from .config import AgentConfig
from .log_limit import LogLimit

KEPT_OF_EMPTIED = 1 << 20  # bytes since a log was emptied that are taken to its end


class RankLogs:
    """Those of one slot.

    Args:
        running: the calls that print into them now.
        complain: told in words when a run has printed its limit.

    Attributes:
        names: of the files, standard output's first.
        ends: how long they were when the last call ended: there the next one begins.
        limits: how long they may get, by name.
    """

    def __init__(
        self,
        config: AgentConfig,
        rank: int,
        number: int,
        running: Mapping[Key, Call],
        complain: Callable[[str], None],
    ) -> None:
        self._rank = rank
        self._running = running
        self._complain = complain
        name = log_stem(rank, number)
        self.names = [name + OUT, name + ERR]
        self.ends: dict[str, int] = {}
        self._spool = str(config.spool)
        self._metrics = name + METRICS
        self._marks = name + MARKS
        self._marker: Marker | None = None
        self._files: dict[str, int] = {}
        self._most: dict[str, int] = {}  # how long they have been
        self.limits = {each: LogLimit(f"{self._spool}/{each}", config.log_limit) for each in self.names}

    def open(self) -> None:
        """Have the log files. What an agent before this one did not see the end of belongs to no later call."""
        if not self._files:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._files = {name: os.open(f"{self._spool}/{name}", flags, 0o600) for name in self.names}
            self.ends = self._sizes()
            for name, end in self.ends.items():
                self.limits[name].begin(end)
            out, err = self._files.values()
            self._marker = Marker(f"{self._spool}/{self._marks}", out, err, AFTER)

    @property
    def descriptors(self) -> tuple[int, int]:
        """Of the open files: standard output, standard error."""
        out, err = self._files.values()
        return out, err

    def range_of(self, call: Call) -> dict[str, list[int]]:
        """Where what a call printed stands in these files: start and end.

        A call begins where the last one ended, so that no byte belongs to no run; threads of one worker, which
        print into the same files at the same time, share what they saw.
        """
        if not self._quiet():
            self.cut_back()
            self.mark(call)
            before, self.ends = self.ends, self._sizes()
            for name, end in self.ends.items() if len(self._running) <= 1 else ():
                if end != before.get(name):
                    self.limits[name].begin(end)
        return {name: [call.log_start.get(name, 0), end] for name, end in self.ends.items()}

    def _quiet(self) -> bool:
        """Whether nothing was printed since the last call's end, and all before it is marked: so it is with most."""
        if self._marker is None:
            return False
        ends = self._sizes()
        return ends == self.ends and (*ends.values(),) == (self._marker.out, self._marker.err)

    def cut_back(self) -> None:
        """Cut logs back to what one run may print, and tell where that has just begun."""
        for name, size in self._sizes().items():
            if self.limits[name].look(size):
                runs = ", ".join({call.run for call in self._running.values()}) or "what runs on"
                said = f"rank {self._rank} has printed its limit during {runs}: the rest of it in {name} is dropped"
                self._complain(said)

    def _sizes(self) -> dict[str, int]:
        sizes = {}
        for name, opened in self._files.items():
            size = os.fstat(opened).st_size
            if size < self._most.get(name, 0):
                size = self._restore(name, opened, size)
            sizes[name] = size
            self._most[name] = min(size, self.limits[name].most)
        return sizes

    def _restore(self, name: str, opened: int, size: int) -> int:
        """A rank has emptied its own log: go on where it was, so that what comes is sent; say what happened."""
        with open(f"{self._spool}/{name}", "rb") as emptied:
            since = emptied.read(min(size, KEPT_OF_EMPTIED))
        with suppress(OSError):  # a full disk is said by others
            os.ftruncate(opened, self._most[name])
            said = f"rank {self._rank} opened this stream anew and emptied it; what was not fetched is lost"
            os.write(opened, f"\nskyward: {said}\n".encode() + since)
        return os.fstat(opened).st_size

    def mark(self, ended: Call | None = None) -> None:
        """Mark what has been printed since this was last done as a run's, where but one has calls here; a call that
        has just ``ended`` is among them."""
        if self._marker is not None:
            self._sizes()  # one that a rank has emptied is mended there
            runs = {call.run for call in (*self._running.values(), *filter(None, (ended,)))}
            self._marker.after(runs.pop() if len(runs) == 1 else "", soon=ended is None)

    def other_ends(self) -> dict[str, int]:
        """The sizes of the files that come beside the logs, of those that are there."""
        sizes = {}
        for name in (self._marks, self._metrics):
            path = f"{self._spool}/{name}"
            # Mostly no rank has put anything there; an exception takes longer to say so.
            if os.access(path, os.F_OK):
                with suppress(FileNotFoundError):  # a rank's code may remove what it finds
                    sizes[name] = os.stat(path).st_size
        return sizes

    def say(self, words: str) -> None:
        """Put a line of ours into the log."""
        with suppress(OSError):  # a full disk is said by others
            os.write(self._files[self.names[1]], f"skyward: {words}\n".encode())
