"""Sbatch, squeue, sinfo and scontrol, and their output parsed."""

from __future__ import annotations

import asyncio
import math
import os
import re
import secrets
import shlex
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from skyward_core.model.errors import PoolError, Unreachable
from skyward_core.providers.provider import contains_words, split_words
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.terminal_safe_text import sanitize_line

if TYPE_CHECKING:
    from skyward_core.transport.ssh.host_address import Target


COMMAND_TIMEOUT = 50.0  # seconds that a command may take; then it is ended where it runs
CONNECTION_SLACK = 10.0  # seconds beyond that for the way there
MAX_OUTPUT_BYTES = 4 << 20  # bytes of an answer
# Variables that commands get. No others: what is in SBATCH_*, SQUEUE_* or SLURM_* changes what they do and print, and
# sbatch gives the whole environment to the job, where a client's secrets have no business.
PASSED_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LD_LIBRARY_PATH", "SLURM_CONF")
SET_VARIABLES = {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
_NOT_FOUND_STATUS = 127
_TIMEOUT_STATUSES = (124, 137)
_NO_CLUSTER_MESSAGE = (
    "Could not establish a configuration source"  # what its commands say where nobody has configured them
)

# A login shell may print before it; $0 is a word that nobody else knows. "!" and "'" mean something to some shells.
_MARKED_COMMAND = 'echo; echo "$0"; "$@"; s=$?; echo; echo "$0 $s"'


class CommandFailed(PoolError):
    """One of Slurm's commands did not do what was asked; the message has what it said."""


class NoSlurm(CommandFailed):
    """There is no Slurm where its commands were to run, or one that belongs to no cluster."""


class SlurmCommands:
    """See the module.

    Args:
        login: the host that they run on; None for this one.
    """

    def __init__(self, login: Target | None) -> None:
        self.login = login

    @property
    def host_label(self) -> str:
        """Where they run, for people to read."""
        return "this machine" if self.login is None else f"host {self.login.label}"

    @asynccontextmanager
    async def hold_connection(self) -> AsyncIterator[None]:
        """Keep one connection for all commands inside it: each login may cost a person's patience."""
        if self.login is None:
            yield
            return
        from skyward_core.transport.ssh.connection import shared_connection

        async with shared_connection(self.login):
            yield

    async def __call__(self, program: str, *arguments: str, stdin: str = "", seconds: float = COMMAND_TIMEOUT) -> str:
        """What a command prints.

        Args:
            seconds: after which it is ended.

        Raises:
            NoSlurm: it is not there.
            CommandFailed: it failed; says what it said.
            Unreachable: it gave no answer in time, or the login host cannot be reached.
        """
        words = ["timeout", "-k", "5", f"{seconds:g}", program, *arguments]
        run = self._run_local if self.login is None else partial(self._run_remote, self.login)
        try:
            async with asyncio.timeout(seconds + CONNECTION_SLACK):
                status, output, errors = await run(words, stdin.encode())
        except TimeoutError as error:
            raise Unreachable(f"{program} on {self.host_label} gave no answer within {seconds:g} s") from error
        if len(output) > MAX_OUTPUT_BYTES:
            raise CommandFailed(f"{program} on {self.host_label} prints more than {MAX_OUTPUT_BYTES >> 20} MB")
        if status == 0:
            return output.decode("utf-8", "replace")
        said = sanitize_line(" ".join(errors[-2000:].decode("utf-8", "replace").split()))
        if status == _NOT_FOUND_STATUS:
            raise NoSlurm(f"there is no {program} on {self.host_label}, which is no login node of a Slurm cluster")
        if _NO_CLUSTER_MESSAGE in said:
            raise NoSlurm(f"Slurm on {self.host_label} is of no cluster: {program} finds no slurm.conf")
        if status in _TIMEOUT_STATUSES:
            raise Unreachable(f"{program} on {self.host_label} gave no answer within {seconds:g} s: {said}")
        raise CommandFailed(f"{program} on {self.host_label} failed: {said or f'exit status {status}, and no word'}")

    async def _run_local(self, words: Sequence[str], stdin: bytes) -> tuple[int, bytes, bytes]:
        env = {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ} | SET_VARIABLES
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *words, env=env, stdin=pipe, stdout=pipe, stderr=pipe, cwd="/", start_new_session=True
            )
        except FileNotFoundError as error:
            raise CommandFailed(f"there is no {words[0]} on {self.host_label}") from error
        try:
            output, errors = await process.communicate(stdin)
        except BaseException:
            with suppress(ProcessLookupError):
                process.terminate()
            raise
        return process.returncode or 0, output, errors

    async def _run_remote(self, login: Target, words: Sequence[str], stdin: bytes) -> tuple[int, bytes, bytes]:
        from skyward_core.transport.ssh.bootstrap_channel import CommandOutput, open_session
        from skyward_core.transport.ssh.connection import shared_connection

        mark = f"skyward-{secrets.token_hex(8)}"
        given = ["env", *(f"{name}={text}" for name, text in SET_VARIABLES.items()), *words]
        command = f"exec sh -c {shlex.quote(_MARKED_COMMAND)} {mark} {shlex.join(given)}"
        said, lines = CommandOutput(), list[bytes]()
        async with shared_connection(login) as link:
            try:
                channel = await open_session(link, command, said)
            except ConnectionError as error:
                raise Unreachable(f"the connection to {self.host_label} is gone: {error}") from error
            try:
                with suppress(OSError):  # a host that closes it at once says why, or nothing
                    channel.write(stdin)
                    channel.write_eof()
                doing, limit = "", None  # of the login shell; the command's is our caller's
                while (line := await said.read_line(login.label, doing, limit)) is not None:
                    lines.append(line)
                    if line == mark.encode():
                        doing, limit = "a command", math.inf
            finally:
                channel.close()
        status = _exit_status(mark.encode(), lines, self.host_label)
        begin = lines.index(mark.encode()) + 1 if mark.encode() in lines else len(lines)
        return status, b"\n".join(lines[begin:-1]), bytes(said.errors)


def _exit_status(mark: bytes, lines: Sequence[bytes], where: str) -> int:
    """The exit status that stands behind the second mark."""
    word, _, status = lines[-1].partition(b" ") if lines else (b"", b"", b"")
    if word != mark or not status.isdigit():
        raise Unreachable(f"{where} ended a command before it had answered")
    return int(status)


# Fields of squeue: number, state, nodes, start, end, name, comment; what may hold anything comes last.
SQUEUE_FORMAT = "%i|%T|%N|%S|%e|%j|%k|%r"
SINFO_FORMAT = "%P|%a|%D|%c|%m|%l|%t|%G"

_ID = re.compile(r"[0-9]{1,12}")
_SBATCH_OUTPUT = re.compile(r"([0-9]{1,12})(;[\w.-]{1,64})?")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_STATE = re.compile(r"[A-Z_]{1,32}")
_NODES = re.compile(r"[A-Za-z0-9\[\],._-]{0,65536}")
_GRES = re.compile(r"gpu:(?:([A-Za-z0-9_.-]{1,64}):)?([0-9]{1,5})")
_NODE_REPORT = re.compile(
    r"skyward-node ([0-9]{1,6}) ([A-Za-z0-9][A-Za-z0-9._-]{0,254}) ([A-Za-z0-9][A-Za-z0-9._:-]{0,254}) ([0-9]{1,5}) "
    r"([A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}) (ssh-ed25519 [A-Za-z0-9+/=]{60,100})"
)
_NODE_ERROR = re.compile(r"skyward-error ([0-9]{1,6}) (.{1,500})")

WAITING_STATES = {
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "RESV_DEL_HOLD",
    "SPECIAL_EXIT",
}
RUNNING_STATES = {"RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
ENDING_STATES = {"COMPLETING"}
END_REASONS = {
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
PREEMPTED_STATES = {"NODE_FAIL", "PREEMPTED", "BOOT_FAIL"}  # others may have better luck
WAIT_REASONS = {
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


def job_end_reason(id: str, told: str) -> str:
    """How a job ended, of the state that sacct tells; "" where it tells none that ends one."""
    state = told.split()[0] if told.split() else ""
    return f"allocation {id} ended: {END_REASONS[state]}" if state in END_REASONS else ""


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
    def has_ended(self) -> bool:
        """Whether nothing of it is left."""
        return self.state not in WAITING_STATES | RUNNING_STATES | ENDING_STATES

    @property
    def end_reason(self) -> str:
        """In words."""
        reason = END_REASONS.get(self.state, f"Slurm calls it {self.state}")
        is_said = self.reason in ("None", "") or self.state in ("TIMEOUT", "PREEMPTED")
        return f"allocation {self.id} ended: {reason}{'' if is_said else f'; {sanitize_line(self.reason)}'}"

    @property
    def wait_reason(self) -> str:
        """In words; Slurm's own word stands in brackets."""
        if self.state != "PENDING":
            return self.state.lower().replace("_", " ")
        word = re.split(r"[ ,(]", self.reason)[0]
        words = WAIT_REASONS.get(word)
        if word == "None":
            return WAIT_REASONS[word]
        return f"{words} ({sanitize_line(self.reason)})" if words else sanitize_line(self.reason)


def parse_jobs(text: str, *, ours: str = "") -> list[SlurmJob]:
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
            raise PoolError(f"squeue prints what is no job: {sanitize_line(line)[:200]}")
        id, state, nodes, start, end, *words = parts
        found.append(SlurmJob(id, state, nodes, _parse_time(start), _parse_time(end), *map(sanitize_line, words)))
    return found


def _parse_time(text: str) -> float | None:
    return float(text) if _ID.fullmatch(text) else None


def parse_job_id(text: str) -> str:
    """The number of the job that sbatch has submitted.

    Raises:
        PoolError: it says none.
    """
    lines = text.split()
    found = _SBATCH_OUTPUT.fullmatch(lines[-1]) if lines else None
    if found is None:
        raise PoolError(
            f"sbatch does not say which job it has submitted: {sanitize_line(text)[:200] or 'it says nothing'}"
        )
    return found[1]


def parse_hostnames(text: str) -> list[str]:
    """Lines of ``scontrol show hostnames``.

    Raises:
        PoolError: a line is no name.
    """
    names = text.split()
    for name in names:
        if not _HOST.fullmatch(name):
            raise PoolError(f"scontrol prints what is no name of a node: {sanitize_line(name)[:200]}")
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


def parse_node_reports(text: str, count: int) -> list[AllocatedNode]:
    """What the nodes of an allocation say of themselves, in their order.

    Args:
        count: how many there are.

    Raises:
        PoolError: one says that it cannot, or nothing.
    """
    nodes: dict[int, AllocatedNode] = {}
    troubles: dict[int, str] = {}
    for line in text.splitlines():
        if found := _NODE_REPORT.fullmatch(line):
            index, port = int(found[1]), int(found[4])
            if index >= count or not 0 < port < 65536 or index in nodes:
                raise PoolError(f"a node of the allocation tells nonsense of itself: {sanitize_line(line)[:200]}")
            nodes[index] = AllocatedNode(index, found[2], found[3], port, found[5], found[6])
        elif found := _NODE_ERROR.fullmatch(line):
            troubles[int(found[1])] = sanitize_line(found[2])
    if troubles:
        raise PoolError("; ".join(f"node {index}: {reason}" for index, reason in sorted(troubles.items())))
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


def parse_partitions(text: str) -> list[Partition]:
    """Lines of sinfo; one that is none is left out."""
    found = []
    for line in text.splitlines():
        parts = line.split("|", 7)
        if len(parts) != 8:
            continue
        name, up, nodes, cpus, memory, limit, state, gres = map(sanitize_line, parts)
        numbers = [each.rstrip("+") for each in (nodes, cpus, memory)]
        if not all(_ID.fullmatch(each) for each in numbers):
            continue
        count, cores, size = map(int, numbers)
        gpus = tuple((kind or "", int(number)) for kind, number in _GRES.findall(gres))
        found.append(
            Partition(name.removesuffix("*"), name.endswith("*"), up == "up", count, cores, size, limit, state, gpus)
        )
    return found


def select_partition(there: Sequence[Partition], named: str | None) -> list[Partition]:
    """Those of the partition that a job goes to: the one that is named, else the default one."""
    if named:
        return list(there)  # of it alone
    return [each for each in there if each.is_default] or list(there)


def parse_version(words: Sequence[str]) -> str:
    """Slurm's version, of what a command of it calls itself."""
    return sanitize_line(words[-1])[:32] if words else "of an unknown version"


def matching_gpu_types(name: str, memory_gb: float | None, there: Iterable[str]) -> list[str]:
    """Those of a cluster's types of GPU that an accelerator may be called there.

    Args:
        name: of the accelerator, as the catalogue has it.
        memory_gb: of each; None for any.
    """
    wanted = split_words(name)
    fitting = [kind for kind in dict.fromkeys(there) if kind and contains_words(split_words(kind), wanted)]
    if memory_gb is not None:
        exact = [kind for kind in fitting if f"{memory_gb:g}gb" in split_words(kind)]
        fitting = exact or fitting
    return fitting
