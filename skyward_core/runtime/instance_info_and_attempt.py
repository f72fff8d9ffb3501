"""``sky.instance_info()`` and ``sky.attempt()``: a rank and its world, the attempt of its run, its phase."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from dataclasses import dataclass

    from skyward_core.protocol.frame_types import AttemptKeys
else:

    def dataclass(**_: bool) -> Callable[[type], type]:
        """Return the class unchanged. Only type checkers see a dataclass; see :class:`_FrozenPart`."""
        return lambda kind: kind


# environment variable with a rank's place (InstanceInfo) as JSON, for child processes of the rank
VARIABLE = "COMPUTE_POOL"
# maximum characters of the variable, including all ports; Linux allows 128 KB per variable
MAX_VARIABLE_BYTES = 64 * 1024


_OF_HOST: Any = object()  # default value that stands for this host's name, which is looked up only if needed


class _AsDataclass:
    """Attribute that the ``dataclasses`` module expects of a class, created at first access."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type[_FrozenPart]) -> Any:
        from dataclasses import field, make_dataclass

        ours: Any = next(each for each in owner.__mro__ if each.__module__ == __name__)
        start, names = ours.__init__, ours.__match_args__
        given = start.__defaults__
        defaults = {name: field(default=each) for name, each in zip(names[-len(given) :], given, strict=True)}
        if "hostname" in defaults:
            defaults["hostname"] = field(default_factory=_hostname)
        kinds = ours.__annotations__
        listed: Any = [(name, kinds[name], defaults.get(name, field())) for name in names]
        made = make_dataclass(ours.__name__, listed, eq=False, repr=False, frozen=True, slots=True)
        value = getattr(made, self._name)
        setattr(ours, self._name, value)
        return value


class _FrozenPart:
    """Base of classes that behave like frozen dataclasses.

    Creating real ones would delay every worker's start by a millisecond, and loads ``inspect`` since Python 3.12.
    """

    __slots__ = ()
    if TYPE_CHECKING:
        __match_args__: ClassVar[tuple[str, ...]]
    else:
        __match_args__ = ()
        __dataclass_fields__ = _AsDataclass()
        __dataclass_params__ = _AsDataclass()

    def __init_subclass__(cls) -> None:
        if cls.__module__ == __name__:  # Subclasses that users define in scripts declare further fields themselves.
            cls.__match_args__ = cls.__slots__  # type: ignore[misc]

    def _fill(self, values: Mapping[str, Any]) -> None:
        for name in self.__match_args__:
            object.__setattr__(self, name, values[name])

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__match_args__}

    def __replace__(self, /, **changes: Any) -> Any:
        return type(self)(**self._values() | changes)

    def __setattr__(self, name: str, value: object) -> None:
        self._refuse("assign to", name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        self._refuse("delete", name)
        super().__delattr__(name)

    def _refuse(self, what: str, name: str) -> None:
        if name in self.__match_args__ or type(self).__module__ == __name__:
            from dataclasses import FrozenInstanceError

            raise FrozenInstanceError(f"cannot {what} field {name!r}")

    def __getstate__(self) -> list[Any]:
        return list(self._values().values())

    def __setstate__(self, state: list[Any]) -> None:
        self._fill(dict(zip(self.__match_args__, state, strict=False)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _FrozenPart) or type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(tuple(self._values().values()))

    def __repr__(self) -> str:
        shown = (f"{name}={each!r}" for name, each in self._values().items())
        return f"{type(self).__qualname__}({', '.join(shown)})"


class _OlderFields:
    """Mixin with the method ``get``, because the values are mappings in older versions of the API."""

    __slots__ = ()

    def get(self, key: str, default: Any = None) -> Any:
        """Return a field by its older name, or ``default`` if there is no such field or its value is unknown."""
        try:
            found = self[key]  # type: ignore[index]  # subclasses define it
        except KeyError:
            return default
        return default if found is None else found


class AcceleratorModel(_OlderFields, str):
    """Model of a node's GPUs as its driver names it: a text with the fields of older API versions.

    ``["type"]``, ``["count"]``, ``["memory_gb"]`` and ``["is_trainium"]`` work, and so does ``get``.
    """

    __slots__ = ("_count",)
    _count: int

    def __new__(cls, text: str = "", count: int = 0) -> AcceleratorModel:
        made = super().__new__(cls, text)
        made._count = count
        return made

    def __getnewargs__(self) -> tuple[str, int]:  # type: ignore[override]  # str returns one value
        return str(self), self._count

    @property
    def name(self) -> str:
        """Name in the catalogue ("H100"), otherwise the driver's name."""
        found = self._in_catalogue()
        return found.name if found else str(self)

    type = name

    @property
    def memory_gb(self) -> float | None:
        """Memory of one GPU in GB. None if neither the name nor the catalogue contains it."""
        for word in self.upper().replace("-", " ").split():
            if word.endswith("GB") and word[:-2].isdigit():
                return float(word[:-2])
        found = self._in_catalogue()
        return min(each.memory_gb for each in found.variants) if found else None

    @property
    def memory(self) -> str:
        """Memory of one GPU as text, "80GB"; empty if unknown."""
        gigabytes = self.memory_gb
        return "" if gigabytes is None else f"{gigabytes:g}GB"

    def _in_catalogue(self) -> Any:
        # imported late, because few scripts use the accelerator catalogue
        from skyward_core.model.accelerators.catalog import find_in_text

        return find_in_text(self)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        fields = {"type": self.name, "count": self._count, "memory_gb": self.memory_gb}
        return (fields | {"is_trainium": self.name.startswith("Trainium")})[key]


@dataclass(frozen=True, eq=False, repr=False)
class Peer(_FrozenPart, _OlderFields, str):
    """Node of the pool. A peer is a ``str`` with the node's address, so that ``",".join(info.peers)`` works.

    Attributes:
        node: Index of the node.
        address: Address for connections from other nodes.
        ports: One port for each rank on the node, by local rank. Each port was free when the gang started. Empty if the
            node did not answer.
    """

    node: int
    address: str
    ports: tuple[int, ...]
    __slots__ = tuple(__annotations__)

    def __new__(cls, node: int, address: str, ports: tuple[int, ...] = ()) -> Peer:
        return str.__new__(cls, address)

    def __init__(self, node: int, address: str, ports: tuple[int, ...] = ()) -> None:
        self._fill(locals())

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.node, self.address, self.ports

    __hash__ = str.__hash__  # A peer equals its address, so both need the same hash.

    def __getitem__(self, key: Any) -> Any:
        """Return a field by its older name: ``peer["node"]``, ``peer["private_ip"]``."""
        if not isinstance(key, str):
            return str.__getitem__(self, key)
        return {"node": self.node, "private_ip": self.address, "address": self.address}[key]


@dataclass(frozen=True, eq=False, repr=False)
class Network(_FrozenPart, _OlderFields):
    """Network interface that connects a node to its peers.

    Attributes:
        interface: Name of the interface with the node's address; empty if unknown.
        gbps: Link speed from the driver in gigabits per second. None if unknown.
    """

    interface: str
    gbps: float | None
    __slots__ = tuple(__annotations__)

    def __init__(self, interface: str = "", gbps: float | None = None) -> None:
        self._fill(locals())

    def __getitem__(self, key: str) -> Any:
        """Return a field by its older name: ``network["interface"]``, ``network["bandwidth_gbps"]``."""
        return {"interface": self.interface, "bandwidth_gbps": self.gbps}[key]


@dataclass(frozen=True, eq=False, repr=False)
class InstanceInfo(_FrozenPart):
    """Place of a rank in its pool.

    Attributes:
        node: Index of this node, 0 to ``total_nodes - 1``. Node 0 is the head node.
        total_nodes: Number of nodes.
        rank: Index of this rank in the gang, 0 to ``world_size - 1``. Ranks of a node have consecutive indices.
        world_size: Number of ranks in the gang, ``total_nodes * ranks_per_node``.
        local_rank: Index of this rank on its node, 0 to ``ranks_per_node - 1``.
        ranks_per_node: Number of ranks on each node.
        head_addr: Address of the head node for its peers; empty for standalone ranks.
        head_port: Port for a rendezvous that was free on the head node when the gang started; 0 for standalone ranks.
        accelerators: Number of GPUs of this node that the NVIDIA driver lists; MIG slices count as GPUs. With
            ``ranks_per_node="gpu"`` a rank sees only one of these GPUs, otherwise all.
        peers: All nodes with their addresses, by index; empty for standalone ranks.
        pool: Name of the pool; empty off a pool.
        run: Id of the current run; empty between runs and off a pool.
        total_accelerators: Number of GPUs of all nodes; for standalone ranks of this node.
        accelerator: Model of this node's GPUs ("NVIDIA H100 80GB HBM3"), separated by commas if they differ; empty
            without GPUs. Its ``name`` is the catalogue's name ("H100"), and ``memory_gb`` its memory.
        hostname: Host name of this node.
        network: Network interface that connects this node to its peers.
        worker: Index of this process among its rank's workers, 0 to ``workers_per_rank - 1``. The gang consists of
            workers with index 0.
        workers_per_rank: Number of worker processes of each rank for tasks, ``Worker(concurrency=)``; 1 if tasks run as
            threads.
    """

    node: int
    total_nodes: int
    rank: int
    world_size: int
    local_rank: int
    ranks_per_node: int
    head_addr: str
    head_port: int
    accelerators: int
    peers: tuple[Peer, ...]
    pool: str
    run: str
    total_accelerators: int
    accelerator: AcceleratorModel
    hostname: str
    network: Network
    worker: int
    workers_per_rank: int
    __slots__ = tuple(__annotations__)

    def __init__(
        self,
        node: int = 0,
        total_nodes: int = 1,
        rank: int = 0,
        world_size: int = 1,
        local_rank: int = 0,
        ranks_per_node: int = 1,
        head_addr: str = "127.0.0.1",
        head_port: int = 29500,
        accelerators: int = 0,
        peers: tuple[Peer, ...] = (Peer(0, "127.0.0.1"),),
        pool: str = "",
        run: str = "",
        total_accelerators: int = 0,
        accelerator: str = "",
        hostname: str = _OF_HOST,
        network: Network = Network(),  # noqa: B008  immutable
        worker: int = 0,
        workers_per_rank: int = 1,
    ) -> None:
        hostname = _hostname() if hostname is _OF_HOST else hostname
        accelerator = AcceleratorModel(accelerator, accelerators)
        self._fill(locals())

    @property
    def is_head(self) -> bool:
        """Whether this rank is rank 0. Exactly one process of a gang is the head, even if the head node has several
        ranks.

        Use the property for work that must happen once, such as printing or saving a checkpoint. Among standalone
        ranks, rank 0 is the head as well, although no rank can wait for it.
        """
        return self.rank == 0

    @classmethod
    def current(cls) -> InstanceInfo | None:
        """Return this rank's place, as ``sky.instance_info()`` does. None off a pool."""
        info = instance_info()
        return info if info.pool else None

    @property
    def job_id(self) -> str:
        """Name of the pool, unique among running pools; empty off a pool."""
        return self.pool

    @property
    def compute(self) -> str:
        """Name of the pool (newest generation)."""
        return self.pool

    @property
    def nodes(self) -> int:
        """Number of nodes: ``total_nodes``."""
        return self.total_nodes

    @property
    def head(self) -> str:
        """Address of the head node: ``head_addr``."""
        return self.head_addr

    @property
    def host(self) -> str:
        """Address of this node: ``address``."""
        return self.address

    @property
    def workers_per_node(self) -> int:
        """Number of worker processes on each node."""
        return self.ranks_per_node * self.workers_per_rank

    @property
    def total_workers(self) -> int:
        """Number of worker processes of the pool."""
        return self.world_size * self.workers_per_rank

    @property
    def global_worker_index(self) -> int:
        """Index of this process among all workers, 0 to ``total_workers - 1``."""
        return self.rank * self.workers_per_rank + self.worker

    @property
    def stands_alone(self) -> bool:
        """Whether this rank is standalone, as with ``Options(cluster=False)``."""
        return not self.peers

    @property
    def address(self) -> str:
        """Address of this node for its peers. The head's address if unknown, empty for standalone ranks."""
        return next((peer.address for peer in self.peers if peer.node == self.node), self.head_addr)

    def with_run(self, run: str) -> InstanceInfo:
        """Return the same place in another run.

        Args:
            run: Id of the run.
        """
        info: InstanceInfo = self.__replace__(run=run)
        return info

    def to_json(self) -> str:
        """Return all fields as a JSON object."""
        peers = [peer._values() for peer in self.peers]
        return json.dumps(self._values() | {"peers": peers, "network": self.network._values()})

    @classmethod
    def from_json(cls, text: str) -> InstanceInfo:
        """Return the place that ``to_json`` wrote. Unknown keys of newer versions are ignored.

        Args:
            text: Result of ``to_json``.

        Raises:
            ValueError: If the text is not a JSON object.
        """
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError(f"a rank's place must be a JSON object, got {type(data).__name__}")
        values = {key: value for key, value in data.items() if key in cls.__match_args__}
        if "peers" in values:
            values["peers"] = tuple(
                Peer(peer["node"], peer["address"], tuple(peer.get("ports", ()))) for peer in values["peers"]
            )
        if "network" in values:
            values["network"] = Network(values["network"]["interface"], values["network"]["gbps"])
        return cls(**values)


Info = InstanceInfo  # name of InstanceInfo in the newest generation of the API


@dataclass(frozen=True, eq=False, repr=False)
class Attempt(_FrozenPart):
    """Attempt of a run that ``Options(on_loss="restart")`` starts again after a failure.

    Attributes:
        number: Number of the attempt, from 1.
        cause: Cause of the previous attempt's failure: "error", "loss", "preemption" or "growth";
            "" for the first attempt.
        message: Root cause of that failure in words; "" for the first attempt.
        lost_ranks: Ranks whose process or machine was lost in the previous attempt.
    """

    number: int
    cause: str
    message: str
    lost_ranks: tuple[int, ...]
    __slots__ = tuple(__annotations__)

    def __init__(self, number: int = 1, cause: str = "", message: str = "", lost_ranks: tuple[int, ...] = ()) -> None:
        self._fill(locals())

    @property
    def is_restart(self) -> bool:
        """Whether an earlier attempt has failed."""
        return self.number > 1


def _hostname() -> str:
    return os.uname().nodename


_current: InstanceInfo | None = None
_in_pool: InstanceInfo | None = None
_task_override: ContextVar[using | None] = ContextVar("skyward_instance_info", default=None)


def instance_info() -> InstanceInfo:
    """Return this rank's place: its index, the gang's size, the head's address and the current run.

    A child process of a rank gets the rank's place. Off a pool the result describes a pool with one node and one rank,
    so that the same code runs anywhere.

        info = sky.instance_info()
        print(f"rank {info.rank} of {info.world_size}")
    """
    task = _task_override.get()
    return task.info if task is not None else _current or _info_from_environment()


def is_head(info: InstanceInfo | None = None) -> bool:
    """Check whether a rank is rank 0. Also usable as a predicate: ``@sky.stdout(only=sky.is_head)``.

    Args:
        info: The rank's place. None for this rank.
    """
    return (info or instance_info()).is_head


# environment variable with the number of the attempt, for child processes and scripts
ATTEMPT_VARIABLE = "SKYWARD_ATTEMPT"
_attempt: Attempt | None = None


def attempt() -> Attempt:
    """Return the attempt of the current run: its number, and why the previous attempt ended.

    Off a pool, and without restarts, the result is the first attempt. A child process of a rank gets the number only.

        if sky.attempt().is_restart:
            load_checkpoint()
    """
    if _attempt is not None:
        return _attempt
    text = os.environ.get(ATTEMPT_VARIABLE, "")
    return Attempt(int(text) if text.isdecimal() and text != "0" else 1)


CHECKPOINTS = "checkpoints"  # name of the folder for checkpoints, in the working folder of the ranks
CHECKPOINT_VARIABLE = "SKYWARD_CHECKPOINT_DIR"
_working_folder = _checkpoint_run = ""


def checkpoint_dir() -> str:
    """Return the folder for checkpoints of the current run, ``checkpoints/RUN`` in the working folder. It exists.

    All attempts of a run have the same folder. With ``Options(on_loss="restart")`` its files are downloaded during the
    run, and copied to the machines of the next attempt that lack them. With ``Options(resume=RUN)`` the folder is that
    of an earlier run. Off a pool, the folder is ``checkpoints``.

        path = f"{sky.checkpoint_dir()}/model.pt"

    Raises:
        OSError: If the folder cannot be created.
    """
    folder = os.environ.get(CHECKPOINT_VARIABLE) or f"{working_folder()}/{CHECKPOINTS}"
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103  # workers do not otherwise import pathlib here
    return folder


def working_folder() -> str:
    """Return the working folder of the rank, even if user code has changed the current folder."""
    return _working_folder or os.getcwd()  # noqa: PTH109


def set_checkpoint_dir(run: str, *, create: bool) -> None:
    """Set the folder for checkpoints of a run. A worker calls this before user code runs.

    Args:
        run: Id of the run.
        create: Whether to create the folder, for scripts that only read the variable. Errors are ignored, because the
            script gets the same error when it writes.
    """
    global _working_folder, _checkpoint_run
    if run != _checkpoint_run:  # Setting a variable takes longer than the rest of a call's bookkeeping.
        _working_folder, _checkpoint_run = working_folder(), run
        os.environ[CHECKPOINT_VARIABLE] = f"{_working_folder}/{CHECKPOINTS}/{run}"
    if create:
        with suppress(OSError):
            checkpoint_dir()


def set_attempt(keys: AttemptKeys | None) -> None:
    """Set the attempt of this process's calls. A worker calls this before user code runs.

    Args:
        keys: The attempt as in the frame of a call. None for a run without restarts.
    """
    global _attempt
    if keys is not None:
        _attempt = Attempt(keys["number"], keys["cause"], keys["message"], tuple(keys["lost"]))
    elif _attempt is None or _attempt.number > 1:
        _attempt = Attempt()
    else:
        return
    os.environ[ATTEMPT_VARIABLE] = str(_attempt.number)


def call_in_progress() -> int:
    """Return the index of the call that this thread runs; -1 if it runs no call."""
    task = _task_override.get()
    return -1 if task is None else task.call


def _info_from_environment() -> InstanceInfo:
    """Return the place (rank and world) from the environment variable that a rank's child processes inherit.

    Ignore values that another program has set.
    """
    info = InstanceInfo()
    with suppress(ValueError, TypeError, KeyError):
        info = InstanceInfo.from_json(os.environ.get(VARIABLE, ""))
    set_current(info)
    return info


def set_current(info: InstanceInfo) -> None:
    """Set the place (rank and world) of this process."""
    global _current
    _current = info


def place_in_pool() -> InstanceInfo:
    """Return this rank's place in its whole pool or gang. A task's own place describes a world of only one rank."""
    return _in_pool or instance_info()


def set_place(place: dict[str, Any], *, own: bool = False) -> InstanceInfo:
    """Set the place (rank and world) of this process and its children, and return it.

    A worker calls this before user code runs.

    Args:
        place: Fields of an :class:`InstanceInfo` as JSON types.
        own: Whether the place is that of a task.
    """
    global _in_pool
    text = json.dumps(place)
    info = InstanceInfo.from_json(text)
    set_current(info)
    if not own:
        _in_pool = info
    if len(text) > MAX_VARIABLE_BYTES:
        text = json.dumps(place | {"peers": [{"node": p.node, "address": p.address} for p in info.peers]})
    os.environ[VARIABLE] = text
    return info


class using:
    """Context in which this thread's task has its own place (rank and world), and its own run if given.

    Other threads are not affected. The place that includes the run is created at first access, because few tasks need
    it.
    """

    __slots__ = ("_info", "_run", "_token", "call")

    def __init__(self, info: InstanceInfo, run: str = "", call: int = -1) -> None:
        self._info = info
        self._run = run
        self.call = call

    @property
    def info(self) -> InstanceInfo:
        if self._run:
            self._info, self._run = self._info.with_run(self._run), ""
        return self._info

    def __enter__(self) -> None:
        self._token = _task_override.set(self)

    def __exit__(self, *_: object) -> None:
        _task_override.reset(self._token)


_phase_listener: Callable[[str], None] | None = None
_thread_state = threading.local()


def set_phase_listener(listener: Callable[[str], None]) -> None:
    """Set the function that receives every phase of this process. A worker calls this once."""
    global _phase_listener
    _phase_listener = listener


def set_phase(phase: str) -> None:
    """Report this process's phase: "importing", "joining" (waiting for other ranks) or "paused" (at a breakpoint)."""
    if _phase_listener is not None:
        _phase_listener(phase)


@contextmanager
def import_for_call() -> Iterator[None]:
    """Mark imports of this thread in a block as needed to load a call's function, so they must not create pools."""
    _thread_state.loads = True
    try:
        yield
    finally:
        _thread_state.loads = False


def refuse_pool_while_loading() -> None:
    """Raise an error if a rank creates a pool while it imports the script, because each rank would create one.

    Raises:
        UsageError: If this thread imports a script for a function.
    """
    if getattr(_thread_state, "loads", False):
        from skyward_core.model.errors import UsageError

        raise UsageError(
            "This script creates a pool when it is imported, and ranks must import it to run its function. "
            'Move the lines that create the pool under if __name__ == "__main__":'
        )


_not_reusable_reason = ""


def mark_not_reusable(reason: str) -> None:
    """Prevent that this process runs further calls after the current one.

    Args:
        reason: The reason, as text.
    """
    global _not_reusable_reason
    _not_reusable_reason = reason


def not_reusable_reason() -> str:
    """Return why this process accepts no further calls; "" if it does."""
    return _not_reusable_reason


def post_mortem(error: BaseException | None = None) -> None:
    """Open a debugger at the place where an exception was raised. Inside ``except`` the argument can be omitted.

    In a rank the debugger works as for ``breakpoint()``: ``Options(debug_wait=)`` limits how long the rank waits for a
    user. Elsewhere this function calls ``pdb.post_mortem``.

    Args:
        error: The exception. None for the one being handled.

    Raises:
        ValueError: If there is no exception.
    """
    if error is None:
        error = sys.exc_info()[1]
    if error is None or error.__traceback__ is None:
        raise ValueError("post_mortem() has no exception. Call it inside except, or pass an exception that was raised.")
    import pdb

    pdb.post_mortem(error.__traceback__)
