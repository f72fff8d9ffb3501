"""Shared state of an agent's parts, the lease, the scheduled shutdown, and data of the network interface."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import subprocess
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from skyward_core.node.agent.call_journal import Journal
from skyward_core.node.agent.call_registry import CallRegistry
from skyward_core.node.agent.config import AgentConfig
from skyward_core.node.agent.gang_state import EpochFile, Gang
from skyward_core.protocol.frame_codec import Header
from skyward_core.util.redaction import Redactor, secret_values

LAST_LINE_BYTES = 2000  # bytes at the end of a file that are searched for its last line


def last_line(path: Path, start: int = 0) -> str:
    """Return the last line of a file.

    Args:
        path: The file.
        start: Offset before which the file is ignored.

    Returns:
        The last non-empty line, at most ``LAST_LINE_BYTES`` bytes of it; "" if there is none.

    Raises:
        OSError: If the file cannot be read.
    """
    with open(path, "rb") as log:
        log.seek(max(start, os.fstat(log.fileno()).st_size - LAST_LINE_BYTES))
        lines = log.read(LAST_LINE_BYTES).decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


class Lease:
    """Lease of a node: limits its age, and its idle time (without an active call or a client that uses the pool).

    Uses the monotonic clock, so that changes of the system clock have no effect.
    """

    def __init__(self, idle_timeout: float, ttl: float | None) -> None:
        self.idle_timeout = idle_timeout
        self.ttl = ttl
        self._born = self._used = time.monotonic()

    def renew(self) -> None:
        self._used = time.monotonic()

    def remaining(self, *, in_use: bool) -> float | None:
        """Return the seconds until the lease expires if the node's use does not change; None for an unlimited lease."""
        now = time.monotonic()
        seconds = None if in_use else self._used + self.idle_timeout - now
        if self.ttl is not None:
            end = self._born + self.ttl - now
            seconds = end if seconds is None else min(seconds, end)
        return seconds

    def reason(self) -> str:
        if self.ttl is not None and time.monotonic() - self._born >= self.ttl:
            return f"its time to live of {self.ttl:g} s expired"
        return f"idle for {self.idle_timeout:g} s"


POSTPONE_PARTS = 5  # number of times that the agent postpones the machine's shutdown during one shutdown delay
MAX_POSTPONE_INTERVAL = 60.0  # maximum seconds between two postponements of the machine's shutdown


class DeadmanSwitch:
    """Dead man's switch: a scheduled shutdown of the machine, which the running agent postpones repeatedly.

    If the agent crashes, nothing postpones the shutdown, and the machine shuts down.

    Args:
        minutes: Delay of the shutdown; 0 to never shut down.
    """

    def __init__(self, minutes: int) -> None:
        self._minutes = minutes
        self._due = 0.0

    def postpone(self) -> None:
        """Postpone the machine's shutdown, unless the agent has postponed it recently."""
        now = time.monotonic()
        if self._minutes and now >= self._due:
            _schedule_shutdown(f"+{self._minutes}")
            self._due = now + min(MAX_POSTPONE_INTERVAL, self._minutes * 60 / POSTPONE_PARTS)

    def trigger(self) -> None:
        """Shut the machine down now."""
        if self._minutes:
            _schedule_shutdown("now")


def _schedule_shutdown(when: str) -> None:
    """Run the system's ``shutdown`` command as root. Ignore its failures, because the agent soon runs it again.

    Raises:
        OSError: If no process can be started.
    """
    command = f"sudo -n shutdown --no-wall -P {when} || shutdown --no-wall -P {when}"
    subprocess.Popen(
        ["/bin/sh", "-c", command],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # The shutdown command must outlive the agent.
    )


SIOCGIFADDR = 0x8915  # Linux ioctl number: get the IPv4 address of a network interface


def network_info(address: str) -> Header:
    """Return the name and the speed in Gbit/s of the network interface to which an IP address belongs."""
    with suppress(OSError):
        name = next((name for name, one in _interface_addresses() if one == address), "")
        return {"interface": name, "gbps": _interface_gbps(name)}
    return {"interface": "", "gbps": None}


def _interface_addresses() -> Iterator[tuple[str, str]]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # This interface has no IPv4 address.
                answer = fcntl.ioctl(sock, SIOCGIFADDR, name.encode()[:15].ljust(40, b"\0"))
                yield name, socket.inet_ntoa(answer[20:24])
    with open("/proc/net/if_inet6", encoding="ascii") as file:
        for line in file:
            number, *_, name = line.split()
            yield name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(number))


def _interface_gbps(name: str) -> float | None:
    """Return the speed in Gbit/s that the driver reports; None for loopback, Wi-Fi and inactive interfaces."""
    try:
        with open(f"/sys/class/net/{name}/speed", encoding="ascii") as file:
            megabits = int(file.read())
    except (OSError, ValueError):
        return None
    return megabits / 1000 if megabits > 0 else None


class NodeState:
    """The state of one node's agent.

    Attributes:
        config: configuration of the agent, completed by workers that outlived an earlier agent.
        module_hashes: source files of the user's modules that workers have loaded -> content hash; "" if workers have
            loaded different versions, or if the hash is unknown.
        env_known: set once the agent knows the pool's variables and secrets, or no worker is left that could send them.
        gpus_known: set once the GPUs of the node are known; ranks wait for this event.
        has_separate_tasks: whether tasks run in their own processes. The gang's processes cannot run tasks if they are
            joined into one world, or if each task gets only a share of the GPUs.
        is_closing: whether the agent is ending and starts no further processes.
        notices: preemption notices of the provider: kind -> deadline by the monotonic clock, if known.
        is_preempted: whether ranks here were notified that the machine is about to be preempted.
        preemption_ends: time at which the last preempted machine of the pool is reclaimed, by the monotonic clock.
        end_frame: frame that states who ends the pool and why; empty if only this agent ends or the reason is unknown.
    """

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        self.gang = Gang()
        self.epochs = EpochFile(Path(config.paths.epoch))
        self.registry = CallRegistry()
        self.lease = Lease(config.idle_timeout, config.ttl)
        self.journal = Journal(Path(config.paths.journal), self.registry.unacknowledged)
        self.redactor = Redactor([*secret_values(os.environ | config.env), *config.secrets])
        self.module_hashes: dict[str, str] = {}
        self.env_known = asyncio.Event()
        self.gpus_known = asyncio.Event()
        if config.accelerators is not None:
            self.gpus_known.set()
        self.has_separate_tasks = False
        self.is_closing = False
        self.notices: dict[str, float | None] = {}
        self.is_preempted = False
        self.preemption_ends = 0.0
        self.end_frame: Header = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task. Keep a reference, because the event loop does not."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def rank_info(self, rank: int, worker: int = 0) -> Header:
        """Return the :class:`InstanceInfo` of a rank of this node; see :meth:`Gang.rank_info`."""
        return self.gang.rank_info(self.config, rank) | self._host_info | {"worker": worker}

    def task_info(self, rank: int, worker: int, port: int) -> Header:
        """Return the :class:`InstanceInfo` of a rank that runs a task: a world of one rank.

        Args:
            port: Port of this node that is free for its rendezvous.
        """
        config = self.config
        seen = (config.accelerators or 0) // (config.ranks_per_node if config.devices else 1)
        gpus = len(self._own_devices(rank)) or seen
        place = self.rank_info(rank, worker) | {"node": 0, "total_nodes": 1, "rank": 0, "world_size": 1}
        place |= {"local_rank": 0, "ranks_per_node": 1, "pool_rank": rank}
        place |= {"accelerators": gpus, "total_accelerators": gpus}
        place.pop("members", None)
        if self.gang.is_standalone:
            return place
        peer = {"node": 0, "address": config.address, "ports": [port]}
        return place | {"head_addr": config.address, "head_port": port, "peers": [peer]}

    def _own_devices(self, rank: int) -> list[str]:
        """Return the GPUs for a rank's tasks if all ranks of the node see the same GPUs; [] if they need not share."""
        config = self.config
        count, ranks = config.accelerators or 0, config.ranks_per_node
        if config.devices or count < 2 or ranks < 2:
            return []
        seen = (os.environ | config.env).get("CUDA_VISIBLE_DEVICES", "")
        names = [name for name in seen.split(",") if name] or [str(number) for number in range(count)]
        at = rank % ranks
        if len(names) < ranks:
            return [names[at % len(names)]]
        return names[at * len(names) // ranks : (at + 1) * len(names) // ranks]

    def machine_share(self, rank: int) -> Header:
        """Return a rank's share of the machine's processors and GPUs, for the process that runs the rank's tasks."""
        config, devices = self.config, self._own_devices(rank)
        here = sum(each.get("address") == config.address for each in self.gang.info.get("peers", ())) or 1
        share: Header = {"sharers": here * config.ranks_per_node}
        return share | {"devices": ",".join(devices)} if devices else share

    @cached_property
    def _host_info(self) -> Header:
        return {"hostname": os.uname().nodename, "network": network_info(self.config.address)}

    def learn_gang(self, gang: Gang) -> None:
        """Store a new epoch of the gang."""
        self.gang = gang
        several = self.config.nodes * self.config.ranks_per_node > 1
        # Tasks run in their own processes: a task sees only its rank's share of the GPUs, and a process that has
        # initialized CUDA cannot change its GPUs.
        self.has_separate_tasks = self.has_separate_tasks or (gang.is_joined and several) or bool(self._own_devices(0))
        self.epochs.save(gang.epoch)
        self.redactor.add(gang.secrets)

    def learn_env(self, env: dict[str, str]) -> None:
        """Add the environment variables of the pool that a worker has sent."""
        self.config = self.config.replace(env=self.config.env | env, knows_env=True)
        self.redactor.add(secret_values(self.config.env))

    def learn_gpus(self, models: Sequence[str]) -> None:
        """Store the models of the node's GPUs."""
        self.config = self.config.with_gpus(models)
        self.gpus_known.set()

    def last_output(self, name: str, start: int = 0) -> str:
        """Describe the last line that a worker printed into a log file. Its output begins at offset ``start``."""
        try:
            line = last_line(self.config.spool / name, start)
        except OSError as error:  # for example because the agent has no free descriptors
            return f"its output cannot be read: {error.strerror}"
        return f"last output: {self.redactor.redact_text(line)}" if line else "no output"
