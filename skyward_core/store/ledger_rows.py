"""What the ledger tells of, as values: pools, their receipts, their runs, and what hosts keep of them."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, ClassVar, NamedTuple, Self

from skyward_core.model.machines import Machine
from skyward_core.model.outcomes import PoolStatus, RootCause, RunKind, RunStatus
from skyward_core.protocol.node_paths import NodePaths
from skyward_core.util.byte_sizes import format_size
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.terminal_safe_text import sanitize_paragraph

RUN_ID = re.compile(r"[0-9a-f]{1,32}")  # what names of runs are made of; hosts tell them, too


@value
class Bill(Value):
    """What a machine cost, as far as is known here; what its provider bills is what counts.

    Attributes:
        machine: the provider's name for it.
        since, until: from when to when, Unix time in seconds.
        hourly: dollars for an hour, all told.
    """

    machine: str
    since: float
    until: float
    hourly: float

    @property
    def dollars(self) -> float:
        """What it comes to."""
        return self.hourly * max(0.0, self.until - self.since) / 3600


def machine_ended_at(gone: Machine, machines: Iterable[Machine]) -> float:
    """When a machine ended, as Unix time: as its provider says; where it says nothing, as of one it took back, when the
    machine in its place was made; else now.

    Args:
        machines: all of the pool.
    """
    told, made = gone.extra.get("ended"), gone.extra.get("launched")
    if told is not None:
        return float(told)
    later = [each.extra.get("launched", 0.0) for each in machines if each.node == gone.node and made is not None]
    return float(min((at for at in later if at > made), default=time.time()))


def make_bills(
    row: PoolRow, machines: Iterable[Machine], ended: Mapping[str, float], price: float | None
) -> tuple[Bill, ...]:
    """Of the machines of a pool of which it is known what they cost.

    Args:
        ended: of those that have: id -> when, Unix time; the others are billed until now.
        price: dollars for an hour of each of which nothing was written down; None where nobody knows.
    """
    now = time.time()
    prices = [(each, each.extra.get("hourly", price)) for each in machines]
    return tuple(
        Bill(each.id, each.extra.get("launched", row.created_at), ended.get(each.id, now), hourly)
        for each, hourly in prices
        if hourly is not None
    )


@value
class Receipt(Value):
    """The proof of a teardown.

    Attributes:
        pool: the pool's name.
        created: machines, replaced ones too.
        gone: the nodes of those that the provider says are gone, once for each machine.
        unaccounted: what may still run, and cost money, by the provider's own names.
        seconds: that the teardown took.
        notes: what else a person should know of it, in words.
        unwritten: why the ledger does not hold this receipt, or "".
        by: the client that tore it down, in words; "" where it ended itself.
        kept: what nobody had fetched and its hosts keep, in words.
        lost: what nobody had fetched (files that ranks wrote, results, logs) and is gone with its machines, in words.
        stays: nodes on which such files stay, and the folder there.
        bills: what its machines cost, replaced ones too; of those alone of which that is known.
    """

    pool: str
    created: int
    gone: tuple[int, ...]
    unaccounted: tuple[str, ...]
    seconds: float
    notes: tuple[str, ...] = ()
    unwritten: str = ""
    by: str = ""
    kept: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    stays: tuple[tuple[int, str], ...] = ()
    bills: tuple[Bill, ...] = ()

    @property
    def spent(self) -> float | None:
        """Dollars, all told; None where nobody knows."""
        return sum(each.dollars for each in self.bills) if self.bills else None

    @property
    def ok(self) -> bool:
        """Whether nothing is left, and that stands in the ledger."""
        return not self.unaccounted and not self.unwritten

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        text = f"created {self.created}, verified gone {len(self.gone)}, unaccounted {len(self.unaccounted)}"
        text += f": {', '.join(self.unaccounted)}" if self.unaccounted else ""
        text += "" if self.spent is None else f"; cost ${self.spent:,.2f}"
        text += f"; kept: {'; '.join(self.kept)}" if self.kept else ""
        text += f"; lost: {'; '.join(self.lost)}" if self.lost else ""
        return sanitize_paragraph(f"{text}; not written down: {self.unwritten}" if self.unwritten else text)


@value
class RetainedResults(Value):
    """What a host keeps of a pool that has ended, because nobody had fetched it.

    Attributes:
        machine: with it the provider reaches the folder in which it is.
        runs: run -> bytes of its results and logs that were not fetched.
        size: bytes that it takes there.
        until: when the host may remove it, Unix time.
    """

    token: str
    machine: Machine
    runs: dict[str, int]
    size: int
    until: float

    @classmethod
    def from_machine(cls, token: str, machine: Machine) -> RetainedResults | None:
        """From what the provider says of a machine that is gone; None where nothing of it is kept."""
        told, extra = machine.extra.get("kept") or {}, machine.extra
        try:
            sizes = {run: int(size) for run, size in told.get("runs", {}).items() if RUN_ID.fullmatch(run)}
            size, until = int(told.get("bytes", 0)), float(told.get("until", 0.0))
        except (TypeError, ValueError, AttributeError):
            return None
        if not sizes or not 0 < until < 1e11:
            return None
        there = replace(
            machine,
            state="running",
            extra=extra | {"folder": NodePaths(extra["folder"]).retained_folder, "kept": {}, "why": ""},
        )
        return cls(token, there, sizes, size, until)

    def describe(self) -> str:
        """What it is and where, in words; of a run without results and logs it is how that ended."""
        sizes = [f"{run} ({format_size(size)})" for run, size in self.runs.items() if size]
        ends = [run for run, size in self.runs.items() if not size]
        parts = [f"run{'s' * (len(sizes) > 1)} {', '.join(sizes)}"] if sizes else []
        parts += [f"how run{'s' * (len(ends) > 1)} {', '.join(ends)} ended"] if ends else []
        return f"{' and '.join(parts)} on node {self.machine.node} ({self.machine.address})"

    def for_runs(self, runs: Container[str]) -> RetainedResults | None:
        """The part of it that is of some runs; None where there is none."""
        part = {run: size for run, size in self.runs.items() if run in runs}
        return replace(self, runs=part) if part else None

    def __str__(self) -> str:
        return f"{self.describe()} until {time.strftime('%Y-%m-%d %H:%M', time.localtime(self.until))}"


class Row(Value):
    """A row of a table of the ledger: each field is a column.

    Attributes:
        table: Name of the table.
        decoders: By column, the function that makes the field's value of a stored one that is not NULL.
    """

    __slots__ = ()
    table: ClassVar[str]
    decoders: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}

    @classmethod
    def columns(cls) -> str:
        """Return the columns for a SELECT."""
        return ", ".join(each.name for each in fields(cls))

    @classmethod
    def from_stored(cls, stored: Sequence[Any]) -> Self:
        """Make a row of the values of its columns."""
        return cls(
            *(
                cls.decoders[each.name](found) if found is not None and each.name in cls.decoders else found
                for each, found in zip(fields(cls), stored, strict=True)
            )
        )


@value
class PoolRow(Row):
    """A pool as the ledger knows it."""

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
        """Name of the pool's folder on the client; unlike the pool's name it is never used twice."""
        return f"{self.name}.{self.token}"


@value
class RunRow(Row):
    """A run as the ledger knows it.

    Attributes:
        pid: the process that dispatched it; None where it was over at once, or only nodes have told of it.
        nodes: that it is on, where these are not all of the pool, none where it waits for some; None for all.
    """

    table = "runs"
    decoders: ClassVar = {
        "root_cause": lambda stored: RootCause(**json.loads(stored)),
        "nodes": lambda stored: tuple(json.loads(stored)),
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

    @property
    def has_client(self) -> bool:
        """Whether the process that dispatched it runs; one that is not written down does not."""
        return is_process_alive(self.pid or 0)


@value
class Purchase(Row):
    """Something that was bought, or may have been.

    Attributes:
        token: what it is marked with at the provider.
        provider: what that wrote of itself.
        block: what was to be bought, as JSON.
        asked_at: when, Unix time.
        state: "asked" (nobody knows what became of it), "bought" or "refused".
        told: the reservation's id, or why there is none.
    """

    table = "purchases"
    decoders: ClassVar = {"provider": json.loads, "block": json.loads}
    token: str
    provider: dict[str, Any]
    block: dict[str, Any]
    asked_at: float
    state: str
    told: str


@value
class Replacement(Row):
    """Another machine for a node, under way.

    Attributes:
        node: index of the node.
        intent: idempotency token of the machine's creation.
        owner: the client that sees to it, as ``PID.WORD``; its process may be gone.
        made: whether the machine exists, and stands in the ledger as the node's.
    """

    table = "replacements"
    decoders: ClassVar = {"made": bool}
    node: int
    intent: str
    owner: str
    made: bool

    @property
    def is_owner_alive(self) -> bool:
        """Whether the process of its owner runs."""
        return is_process_alive(int(self.owner.partition(".")[0] or 0))


def is_process_alive(pid: int) -> bool:
    """Whether a process of this machine runs; 0 is none."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0


class RemainingFiles(NamedTuple):
    """What is left on the nodes of a pool that ends.

    Attributes:
        notes: where it lies, in words.
        lost: what goes with its machines, in words.
        stays: nodes on which it stays, and the folder there.
    """

    notes: Sequence[str] = ()
    lost: Sequence[str] = ()
    stays: Sequence[tuple[int, str]] = ()
