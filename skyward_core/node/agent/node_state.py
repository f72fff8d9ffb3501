"""What the parts of an agent share. They read it, and change what is theirs; nothing in it acts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from ...wire.frames import Header
from ...wire.redact import Redactor, secret_values
from .calls import Register
from .config import AgentConfig
from .gang import Epochs, Gang
from .journal import Journal
from .last_line import last_line
from .lease import Lease
from .network import network


class NodeState:
    """One node's.

    Attributes:
        config: what the agent was started with, and what workers that outlived another agent have told.
        modules: files of the person's own modules that workers have loaded, and the hash of each as it was then; ""
            where they differ, or nobody knows.
        informed: set once the pool's variables and secrets are known here, as far as anybody knows them.
        gpus_known: set once it is known which GPUs the node has: ranks are told, and so wait for it.
        apart: tasks run in other processes of the ranks than the gang's, which have joined one another.
        in_blocks: ranks run something in gangs of some of the node's ranks; see :mod:`.blocks`.
        closing: the agent ends; nothing is started any more.
        notices: what its provider says of the machine's end: kind, and when (by the monotonic clock), where it says so.
        is_taken_back: ranks here were told that the machine is about to be taken back.
        ending: who ends the pool and why, as a frame, where that is known; empty where only this agent ends.
    """

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        self.gang = Gang()
        self.epochs = Epochs(Path(config.paths.epoch))
        self.register = Register()
        self.lease = Lease(config.idle_timeout, config.ttl)
        self.journal = Journal(Path(config.paths.journal), self.register.unacknowledged)
        self.redactor = Redactor([*secret_values(os.environ | config.env), *config.secrets])
        self.modules: dict[str, str] = {}
        self.informed = asyncio.Event()
        self.gpus_known = asyncio.Event()
        if config.accelerators is not None:
            self.gpus_known.set()
        self.apart = False
        self.in_blocks = False
        self.closing = False
        self.notices: dict[str, float | None] = {}
        self.is_taken_back = False
        self.ending: Header = {}

    def place(self, rank: int, worker: int = 0) -> Header:
        """What a worker of a rank of this node is told of itself; see :meth:`.gang.Gang.place`."""
        return self.gang.place(self.config, rank) | self._host | {"worker": worker}

    def own_place(self, rank: int, worker: int, port: int) -> Header:
        """Return the :class:`InstanceInfo` of a rank that runs a task: a world of one rank.

        Args:
            port: Port of this node that is free for its rendezvous.
        """
        config = self.config
        each = config.ranks_per_node
        seen = (config.accelerators or 0) // (each if config.devices else 1)
        gpus = len(self.devices(rank % each, 1)) or seen
        place = self.place(rank, worker) | {"node": 0, "total_nodes": 1, "rank": 0, "world_size": 1}
        place |= {"local_rank": 0, "ranks_per_node": 1, "pool_rank": rank}
        place |= {"accelerators": gpus, "total_accelerators": gpus}
        place.pop("members", None)
        if self.gang.alone:
            return place
        peer = {"node": 0, "address": config.address, "ports": [port]}
        return place | {"head_addr": config.address, "head_port": port, "peers": [peer]}

    def devices(self, first: int, width: int) -> list[str]:
        """Return the share of the GPUs of some neighbouring ranks, if ranks see all that the node has; else none."""
        config = self.config
        count, blocks = config.accelerators or 0, config.ranks_per_node // width
        if config.devices or count < 2 or blocks < 2:
            return []
        seen = (os.environ | config.env).get("CUDA_VISIBLE_DEVICES", "")
        names = [name for name in seen.split(",") if name] or [str(number) for number in range(count)]
        at = first // width
        if len(names) < blocks:
            return [names[at % len(names)]]
        return names[at * len(names) // blocks : (at + 1) * len(names) // blocks]

    def share(self, first: int, width: int) -> Header:
        """Return the share of the machine of some neighbouring ranks, as a process is told when it is set up."""
        config, devices = self.config, self.devices(first, width)
        here = sum(each.get("address") == config.address for each in self.gang.info.get("peers", ())) or 1
        told: Header = {"sharers": here * config.ranks_per_node}
        return told | {"devices": ",".join(devices)} if devices else told

    @cached_property
    def _host(self) -> Header:
        return {"hostname": os.uname().nodename, "network": network(self.config.address)}

    def learn_gang(self, gang: Gang) -> None:
        """There is a new epoch."""
        self.gang = gang
        several = self.config.nodes * self.config.ranks_per_node > 1
        # A task sees its rank's share of the GPUs; a process that has begun to use CUDA sees what it saw then.
        self.apart = self.apart or (gang.joins and several) or bool(self.devices(0, 1))
        self.epochs.note(gang.epoch)
        self.redactor.add(gang.secrets)

    def learn_env(self, env: dict[str, str]) -> None:
        """A worker has told the variables that the pool was made with."""
        self.config = self.config.changed(env=self.config.env | env, knows_env=True)
        self.redactor.add(secret_values(self.config.env))

    def learn_gpus(self, models: Sequence[str]) -> None:
        """The node has these."""
        self.config = self.config.with_gpus(models)
        self.gpus_known.set()

    def last_words(self, name: str, start: int = 0) -> str:
        """The last line of a file of the spool, in words; what stands before an offset is somebody else's."""
        line = last_line(self.config.spool / name, start)
        return f"it said: {self.redactor.text(line)}" if line else "it said nothing"
