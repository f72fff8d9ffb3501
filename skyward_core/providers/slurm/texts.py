"""What Slurm's commands print, read strictly: who else has jobs on the cluster chooses names and comments of theirs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ...model.errors import PoolError
from ...model.value import Value, value
from ...wire.safe_text import field as safe

# Fields of squeue: number, state, nodes, start, end, name, comment; what may hold anything comes last.
FIELDS = "%i|%T|%N|%S|%e|%j|%k|%r"
PARTITIONS = "%P|%a|%D|%c|%m|%l|%t|%G"

_ID = re.compile(r"[0-9]{1,12}")
_SUBMITTED = re.compile(r"([0-9]{1,12})(;[\w.-]{1,64})?")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_STATE = re.compile(r"[A-Z_]{1,32}")
_NODES = re.compile(r"[A-Za-z0-9\[\],._-]{0,65536}")
_GRES = re.compile(r"gpu:(?:([A-Za-z0-9_.-]{1,64}):)?([0-9]{1,5})")
_REPORT = re.compile(
    r"skyward-node ([0-9]{1,6}) ([A-Za-z0-9][A-Za-z0-9._-]{0,254}) ([A-Za-z0-9][A-Za-z0-9._:-]{0,254}) ([0-9]{1,5}) "
    r"([A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}) (ssh-ed25519 [A-Za-z0-9+/=]{60,100})"
)
_TROUBLE = re.compile(r"skyward-error ([0-9]{1,6}) (.{1,500})")

WAITING = {
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "RESV_DEL_HOLD",
    "SPECIAL_EXIT",
}
RUNNING = {"RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
ENDING = {"COMPLETING"}
ENDED = {
    "TIMEOUT": "its time limit was reached",
    "CANCELLED": "somebody cancelled it (scancel)",
    "NODE_FAIL": "a node of it failed",
    "PREEMPTED": "Slurm gave its nodes to another job (preemption)",
    "OUT_OF_MEMORY": "it used more memory than it was given",
    "BOOT_FAIL": "its nodes could not be booted",
    "DEADLINE": "its deadline was reached",
    "FAILED": "its script failed",
    "COMPLETED": "no agent was left on its nodes",
    "REVOKED": "another cluster has it",
}
TAKEN = {"NODE_FAIL", "PREEMPTED", "BOOT_FAIL"}  # others may have better luck
REASONS = {
    "Resources": "no nodes are free",
    "Priority": "others come before it",
    "Dependency": "another job comes before it",
    "JobHeldUser": "it is held; scontrol release lets it go",
    "JobHeldAdmin": "an administrator holds it",
    "PartitionTimeLimit": "it asks for more time than the partition allows, and would wait for ever: see time=",
    "PartitionNodeLimit": "it asks for more nodes than the partition has, and would wait for ever",
    "PartitionDown": "the partition is down",
    "ReqNodeNotAvail": "a node that it needs is not available",
    "Reservation": "its reservation has not begun",
    "BeginTime": "its time has not come",
    "None": "Slurm has not looked at it yet",
}


def ending(id: str, told: str) -> str:
    """How a job ended, of the state that sacct tells; "" where it tells none that ends one."""
    state = told.split()[0] if told.split() else ""
    return f"allocation {id} ended: {ENDED[state]}" if state in ENDED else ""


@value
class SlurmJob(Value):
    """One line of squeue; times are Unix times, None where there is none yet."""

    id: str
    state: str
    nodes: str
    start: float | None
    end: float | None
    name: str
    comment: str
    reason: str

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is left."""
        return self.state not in WAITING | RUNNING | ENDING

    @property
    def how_it_ended(self) -> str:
        """In words."""
        why = ENDED.get(self.state, f"Slurm calls it {self.state}")
        more = (
            ""
            if self.reason in ("None", "") or self.state in ("TIMEOUT", "PREEMPTED")
            else f"; {safe(self.reason)}"
        )
        return f"allocation {self.id} ended: {why}{more}"

    @property
    def why_it_waits(self) -> str:
        """In words; Slurm's own word stands in brackets."""
        if self.state != "PENDING":
            return self.state.lower().replace("_", " ")
        word = re.split(r"[ ,(]", self.reason)[0]
        words = REASONS.get(word)
        if word == "None":
            return REASONS[word]
        return f"{words} ({safe(self.reason)})" if words else safe(self.reason)


def jobs(text: str, *, ours: str = "") -> list[SlurmJob]:
    """Lines of squeue.

    Args:
        ours: what the names of those begin with that are meant; others may be called whatever there is.

    Raises:
        PoolError: a line of those is none.
    """
    found = []
    for line in filter(None, text.splitlines()):
        parts = line.split("|", 7)
        if ours and not (len(parts) > 5 and parts[5].startswith(ours)):
            continue
        if len(parts) != 8 or not (
            _ID.fullmatch(parts[0]) and _STATE.fullmatch(parts[1]) and _NODES.fullmatch(parts[2])
        ):
            raise PoolError(f"squeue prints what is no job: {safe(line)[:200]}")
        id, state, nodes, start, end, name, comment, reason = parts
        found.append(
            SlurmJob(id, state, nodes, _time(start), _time(end), safe(name), safe(comment), safe(reason))
        )
    return found


def _time(text: str) -> float | None:
    return float(text) if _ID.fullmatch(text) else None


def submitted(text: str) -> str:
    """The number of the job that sbatch has submitted.

    Raises:
        PoolError: it says none.
    """
    lines = text.split()
    found = _SUBMITTED.fullmatch(lines[-1]) if lines else None
    if found is None:
        raise PoolError(
            f"sbatch does not say which job it has submitted: {safe(text)[:200] or 'it says nothing'}"
        )
    return found[1]


def hostnames(text: str) -> list[str]:
    """Lines of ``scontrol show hostnames``.

    Raises:
        PoolError: a line is no name.
    """
    names = text.split()
    for name in names:
        if not _HOST.fullmatch(name):
            raise PoolError(f"scontrol prints what is no name of a node: {safe(name)[:200]}")
    return names


@value
class AllocatedNode(Value):
    """A node of an allocation on which an SSH server of the pool's own listens."""

    index: int
    name: str
    address: str
    port: int
    user: str
    host_key: str


def reports(text: str, count: int) -> list[AllocatedNode]:
    """What the nodes of an allocation say of themselves, in their order.

    Args:
        count: how many there are.

    Raises:
        PoolError: one says that it cannot, or nothing.
    """
    nodes: dict[int, AllocatedNode] = {}
    troubles: dict[int, str] = {}
    for line in text.splitlines():
        if found := _REPORT.fullmatch(line):
            index, port = int(found[1]), int(found[4])
            if index >= count or not 0 < port < 65536 or index in nodes:
                raise PoolError(f"a node of the allocation tells nonsense of itself: {safe(line)[:200]}")
            nodes[index] = AllocatedNode(index, found[2], found[3], port, found[5], found[6])
        elif found := _TROUBLE.fullmatch(line):
            troubles[int(found[1])] = safe(found[2])
    if troubles:
        raise PoolError("; ".join(f"node {index}: {why}" for index, why in sorted(troubles.items())))
    if lacking := [str(index) for index in range(count) if index not in nodes]:
        raise PoolError(f"node {', '.join(lacking)} of the allocation has not said how it is reached")
    return [nodes[index] for index in range(count)]


@value
class Partition(Value):
    """One line of sinfo: nodes of a partition that are alike.

    Attributes:
        is_default: whether jobs go there that name none.
        gpus: type ("" where it has none) and number of each kind of GPU.
    """

    name: str
    is_default: bool
    is_up: bool
    nodes: int
    cpus: int
    memory_mb: int
    limit: str
    state: str
    gpus: tuple[tuple[str, int], ...]

    @property
    def memory_gb(self) -> float:
        """Memory of each node, in tenths of a GB."""
        return self.memory_mb * 10 // 1024 / 10

    def __str__(self) -> str:
        gpus = ", ".join(f"{number} × {kind or 'GPU'}" for kind, number in self.gpus) or "no GPU"
        size = f"{self.cpus} CPUs, {self.memory_gb:g} GB, {gpus}"
        nodes = f"{self.nodes} node{'s' * (self.nodes != 1)}"
        return f"{nodes} {self.state}, each {size}; time limit {self.limit}"


def partitions(text: str) -> list[Partition]:
    """Lines of sinfo; one that is none is left out."""
    found = []
    for line in text.splitlines():
        parts = line.split("|", 7)
        if len(parts) != 8:
            continue
        name, up, nodes, cpus, memory, limit, state, gres = map(safe, parts)
        numbers = [each.rstrip("+") for each in (nodes, cpus, memory)]
        if not all(_ID.fullmatch(each) for each in numbers):
            continue
        count, cores, size = map(int, numbers)
        gpus = tuple((kind or "", int(number)) for kind, number in _GRES.findall(gres))
        found.append(
            Partition(
                name.removesuffix("*"), name.endswith("*"), up == "up", count, cores, size, limit, state, gpus
            )
        )
    return found


def meant(there: Sequence[Partition], named: str | None) -> list[Partition]:
    """Those of the partition that a job goes to: the one that is named, else the default one."""
    if named:
        return list(there)  # of it alone
    return [each for each in there if each.is_default] or list(there)


def version(words: Sequence[str]) -> str:
    """Slurm's version, of what a command of it calls itself."""
    return safe(words[-1])[:32] if words else "of an unknown version"


def gpu_type(name: str, memory_gb: float | None, there: Iterable[str]) -> list[str]:
    """Those of a cluster's types of GPU that an accelerator may be called there.

    Args:
        name: of the accelerator, as the catalogue has it.
        memory_gb: of each; None for any.
    """
    wanted = _parts(name)
    fitting = [kind for kind in dict.fromkeys(there) if kind and _holds(_parts(kind), wanted)]
    if memory_gb is not None:
        exact = [kind for kind in fitting if f"{memory_gb:g}gb" in _parts(kind)]
        fitting = exact or fitting
    return fitting


def _parts(text: str) -> list[str]:
    return [part for part in re.split(r"[^a-z0-9]+", text.lower()) if part]


def _holds(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    width = len(wanted)
    return any(list(parts[at : at + width]) == list(wanted) for at in range(len(parts) - width + 1))
