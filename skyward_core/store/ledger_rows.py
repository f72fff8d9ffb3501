"""Rows of the ledger as values: pools, runs, purchases, replacements and retained results."""

from __future__ import annotations

import json
import os
import re
import time
import zlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.model.outcomes_states_and_alerts import PoolStatus, RootCause, RunKind, RunStatus
from skyward_core.protocol.node_paths import NodePaths
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.number_size_and_time_format import format_size

REMAINS = "remains on the host: "  # beginning of a note in a receipt about unfetched files
RUN_ID = re.compile(r"[0-9a-f]{1,32}")  # syntax of run ids, validated because hosts report them, too


@value
class RetainedResults(Value):
    """Unfetched results that a host retains of an ended pool.

    Attributes:
        token: Token of the pool.
        machine: Machine whose folder contains the results.
        runs: Run -> bytes of unfetched results and logs.
        size: Bytes on the host's disk.
        until: Unix time from which the host may delete the results.
    """

    token: str
    machine: Machine
    runs: dict[str, int]
    size: int
    until: float

    @classmethod
    def from_machine(cls, token: str, machine: Machine) -> RetainedResults | None:
        """Create an entry from the provider's report about a machine that has ended. None if nothing is retained."""
        report, extra = machine.extra.get("kept") or {}, machine.extra
        try:
            sizes = {run: int(size) for run, size in report.get("runs", {}).items() if RUN_ID.fullmatch(run)}
            size, until = int(report.get("bytes", 0)), float(report.get("until", 0.0))
        except (TypeError, ValueError, AttributeError):
            return None
        if not sizes or not 0 < until < 1e11:
            return None
        retained = replace(
            machine,
            state="running",
            extra=extra | {"folder": NodePaths(extra["folder"]).retained_folder, "kept": {}, "why": ""},
        )
        return cls(token, retained, sizes, size, until)

    def describe(self) -> str:
        """Describe the results and their place. For runs without results and logs, only the outcome is retained."""
        sizes = [f"{run} ({format_size(size)})" for run, size in self.runs.items() if size]
        ends = [run for run, size in self.runs.items() if not size]
        parts = [f"run{'s' * (len(sizes) > 1)} {', '.join(sizes)}"] if sizes else []
        parts += [f"the outcome of run{'s' * (len(ends) > 1)} {', '.join(ends)}"] if ends else []
        return f"{' and '.join(parts)} on node {self.machine.node} ({self.machine.address})"

    def for_runs(self, runs: Container[str]) -> RetainedResults | None:
        """Return the part of the entry that belongs to the given runs; None if it contains none of them."""
        part = {run: size for run, size in self.runs.items() if run in runs}
        return replace(self, runs=part) if part else None

    def __str__(self) -> str:
        return f"{self.describe()} until {time.strftime('%Y-%m-%d %H:%M', time.localtime(self.until))}"


class Row(Value):
    """Row of a table of the ledger. Each field is a column.

    Attributes:
        table: Name of the table.
        decoders: By column: function that decodes a stored value that is not NULL.
    """

    __slots__ = ()
    table: ClassVar[str]
    decoders: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    renamed: ClassVar[Mapping[str, str]] = {}  # name of a field -> name of its column, if the names differ

    @classmethod
    def column_names(cls) -> list[str]:
        """Return the names of the columns, in the order of the fields."""
        return [cls.renamed.get(each.name, each.name) for each in fields(cls)]

    @classmethod
    def columns(cls) -> str:
        """Return the names of the columns, separated by commas, for an SQL SELECT."""
        return ", ".join(cls.column_names())

    @classmethod
    def from_stored(cls, stored: Sequence[Any]) -> Self:
        """Create a row from the values that SQLite has stored, in the order of the columns."""
        return cls(
            *(
                cls.decoders[each.name](found) if found is not None and each.name in cls.decoders else found
                for each, found in zip(fields(cls), stored, strict=True)
            )
        )


@value
class PoolRow(Row):
    """A pool in the ledger.

    Attributes:
        pid: Mark (see :func:`process_mark`) of the process that starts the pool. None if no process does.
    """

    table = "pools"
    decoders: ClassVar = {"provider": json.loads, "spec": json.loads, "receipt": json.loads}
    token: str
    name: str
    provider: dict[str, Any]
    spec: dict[str, Any]
    state: PoolStatus
    created_at: float
    ended_at: float | None
    receipt: dict[str, Any] | None
    pid: int | None

    @property
    def key(self) -> str:
        """Name of the pool's folder on the client. Unlike the pool's name, it is unique."""
        return f"{self.name}.{self.token}"


@value
class RunRow(Row):
    """A run in the ledger.

    Attributes:
        pid: Mark (see :func:`process_mark`) of the process that dispatched the run. None if the run ended at once, or
            if only nodes reported it.
        nodes: Nodes of the run; () while the run waits for nodes. None: all nodes.
        attempts: Number of started attempts; None for one.
        attempt_ends: Ends of the failed attempts, oldest first; see ``events.attempt_end_row``. None for none.
    """

    table = "runs"
    decoders: ClassVar = {
        "root_cause": lambda stored: RootCause(**json.loads(stored)),
        "nodes": lambda stored: tuple(json.loads(stored)),
        "attempt_ends": lambda stored: tuple(json.loads(stored)),
    }
    run: str
    token: str
    function: str
    kind: RunKind
    total: int
    state: RunStatus
    opened_at: float
    ended_at: float | None
    root_cause: RootCause | None
    pid: int | None = None
    nodes: tuple[int, ...] | None = None
    attempts: int | None = None
    attempt_ends: tuple[dict[str, Any], ...] | None = None

    @property
    def has_client(self) -> bool:
        """Whether the process that dispatched the run still runs. False if unknown."""
        return is_process_alive(self.pid or 0)


@value
class Purchase(Row):
    """A purchase of reserved capacity, possibly unconfirmed.

    Attributes:
        token: Tag of the purchase at the provider.
        provider: The provider as JSON.
        block: The capacity block as JSON.
        asked_at: Unix time of the request.
        state: "asked" (unconfirmed), "bought" or "refused".
        result: Id of the reservation, or the reason for the refusal.
    """

    table = "purchases"
    renamed: ClassVar = {"result": "told"}
    decoders: ClassVar = {"provider": json.loads, "block": json.loads}
    token: str
    provider: dict[str, Any]
    block: dict[str, Any]
    asked_at: float
    state: str
    result: str


@value
class Replacement(Row):
    """A replacement of a node's machine that is in progress.

    Attributes:
        node: Index of the node.
        intent: Idempotency token of the machine's creation.
        owner: Client that performs the replacement: the mark of its process (see :func:`process_mark`), a dot, and
            random text. The process may have exited.
        made: Whether the machine exists and is recorded as the node's machine.
    """

    table = "replacements"
    decoders: ClassVar = {"made": bool}
    node: int
    intent: str
    owner: str
    made: bool

    @property
    def is_owner_alive(self) -> bool:
        """Whether the owner's process still runs."""
        return is_process_alive(int(self.owner.partition(".")[0] or 0))


_PID_BITS = 22  # number of bits of a process id, because Linux has at most 2^22 processes


def process_mark(pid: int | None = None) -> int:
    """Return a number that identifies a process of this machine: its process id, and a hash of its start and the boot.

    Another process can later have the same process id, for example 1 in the next container.

    Args:
        pid: Process id; None for this process.
    """
    pid = os.getpid() if pid is None else pid
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        state, *fields = text.rpartition(")")[2].split()
        started = f"{fields[18]} {_boot_id()}"
    except (OSError, ValueError, IndexError):
        return pid
    # A zombie process has ended although its parent does not wait for it, as in containers without an init process.
    if state == "Z":
        return 0
    return (zlib.crc32(started.encode()) << _PID_BITS) + pid if pid >> _PID_BITS == 0 else pid


def marked_pid(mark: int) -> int:
    """Return the process id that a mark of :func:`process_mark` contains."""
    return mark & ((1 << _PID_BITS) - 1)


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")


def is_process_alive(mark: int) -> bool:
    """Check whether a process of this machine runs. False for 0.

    Args:
        mark: Number from :func:`process_mark`, or a process id.
    """
    pid = marked_pid(mark)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    found = process_mark(pid)
    return pid > 0 and found > 0 and mark in (pid, found)


class RemainingFiles(NamedTuple):
    """Output files that remain on the nodes of an ending pool.

    Attributes:
        notes: Messages to the user.
        lost: Descriptions of files that are deleted with the machines.
        places: Nodes on which files remain, with the folder.
    """

    notes: Sequence[str] = ()
    lost: Sequence[str] = ()
    places: Sequence[tuple[int, str]] = ()
