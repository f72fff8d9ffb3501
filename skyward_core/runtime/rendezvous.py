"""Rendezvous variables of torch and JAX, network interface.

The names are those of https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables. In a task they
describe a world of one rank: code that waited for other ranks there would wait for ever.
"""

from __future__ import annotations

import functools
import os
import socket
import struct
import sys
from _socket import AF_INET, SOCK_DGRAM, if_nameindex, inet_ntoa
from _socket import socket as network_socket
from collections import deque
from collections.abc import Callable, Mapping
from types import CodeType, ModuleType
from typing import Any

from skyward_core.runtime import instance_info
from skyward_core.runtime.import_hooks import call_when_imported
from skyward_core.runtime.instance_info import InstanceInfo

JAX_MODULE = "jax.distributed"
JAX_ARGUMENTS = ("coordinator_address", "num_processes", "process_id")

_shared = False


def jax_arguments(info: InstanceInfo, port: int) -> dict[str, Any]:
    """What ``jax.distributed.initialize()`` has to be told.

    Args:
        info: the rank's place.
        port: of the head node, at which rank 0 listens.
    """
    address = f"{info.head_addr}:{port}"
    return {
        "coordinator_address": address,
        "num_processes": info.world_size,
        "process_id": info.rank,
        "cluster_detection_method": "deactivate",
        "coordinator_bind_address": address,
    }


def configure_jax() -> None:
    """Set what JAX would have otherwise, before its runtime is there."""
    import jax

    # Between processes XLA's CPU client reduces by gloo only where it is told so.
    if jax.config.jax_cpu_collectives_implementation in (None, "none"):
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # The preemption service takes SIGTERM for itself, which would leave a cancelled rank running.
    if hasattr(jax.config, "jax_enable_preemption_service"):
        jax.config.update("jax_enable_preemption_service", False)


def patch_jax_initialize(distributed: Any, place: Callable[[], Mapping[str, Any]]) -> None:
    """From now on ``jax.distributed.initialize()`` takes what it is not given from this rank's place. Where the runtime
    is up, it is left as it is, if what is asked for agrees with it; where ``shutdown()`` ends it, the process is not
    used any more.

    Args:
        distributed: the module ``jax.distributed``.
        place: gives all arguments that make a rank of this pool.
    """
    import inspect

    global _shared
    _shared = True
    initialize, shutdown = distributed.initialize, distributed.shutdown
    signature = inspect.signature(initialize)

    @functools.wraps(initialize)
    def initialize_once(*args: Any, **kwargs: Any) -> None:
        given = signature.bind_partial(*args, **kwargs).arguments
        asked = {name: value for name, value in given.items() if value is not None}
        here = place()
        if not distributed.is_initialized():
            configure_jax()
            missing = {} if asked.keys() & set(JAX_ARGUMENTS) else dict(here)
            initialize(**missing | asked)
            return
        differ = [name for name in JAX_ARGUMENTS if name in asked and asked[name] != here[name]]
        if differ:
            from skyward_core.model.errors import UsageError

            wants = ", ".join(f"{name}={asked[name]!r}" for name in differ)
            there = ", ".join(f"{name}={here[name]!r}" for name in JAX_ARGUMENTS)
            raise UsageError(
                f"jax.distributed.initialize({wants}) asks for another runtime than the one that there is of this "
                f"pool's ranks ({there}): leave these arguments out, or let the function initialise it alone "
                "(init=False of the plugin jax)"
            )

    @functools.wraps(shutdown)
    def shut_down() -> None:
        was_up = distributed.is_initialized()
        shutdown()
        if was_up:
            instance_info.mark_not_reusable("it shut JAX's distributed runtime down")

    distributed.initialize, distributed.shutdown = initialize_once, shut_down


def patch_jax_when_imported(place: Callable[[], Mapping[str, Any]]) -> None:
    """The same, as soon as somebody imports JAX; nothing where a plugin has done it.

    Args:
        place: see :func:`patch_jax_initialize`.
    """

    def share(distributed: ModuleType) -> None:
        if not _shared:
            patch_jax_initialize(distributed, place)

    call_when_imported(share, JAX_MODULE)


_SIOCGIFADDR = 0x8915  # from linux/sockios.h: an interface's IPv4 address


def find_interface(address: str) -> str | None:
    """Name of this machine's interface that has the IPv4 address; None where it cannot be told.

    Frameworks that are not given one look their host's own name up, which takes seconds where the name
    server has no answer, and finds 127.0.0.1 on hosts whose name points there.
    """
    if address.startswith("127."):
        names = [name for _, name in if_nameindex()]
        return next((name for name in ("lo", "lo0") if name in names), None)
    if sys.platform != "linux":
        return None
    import fcntl

    probe = network_socket(AF_INET, SOCK_DGRAM)
    try:
        for _, name in if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # the interface has no IPv4 address
                continue
            if inet_ntoa(answer[20:24]) == address:
                return name
    finally:
        probe.close()
    return None


def claim_port(info: InstanceInfo) -> int:
    """A port on the head node that no other plugin of this worker was given.

    Ranks enter the same plugins in the same order, so they agree without talking: the first plugin has the
    head's port itself, which was free when the gang started, the next one the port behind it.
    """
    port = _next_ports.get(info.head_port, info.head_port)
    _next_ports[info.head_port] = port + 1
    return port


_next_ports: dict[int, int] = {}


def threads_per_rank(info: InstanceInfo) -> int:
    """Processors of this machine for each rank on it, at least 1.

    Nodes with the same address share one machine (a local pool).
    """
    nodes_here = sum(peer.address == info.address for peer in info.peers) or 1
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, count // (nodes_here * info.ranks_per_node))


def limit_machine_share(ranks: int, devices: str) -> None:
    """Have this rank, one of a block of its node's, keep to its share, unless the person has decided.

    Args:
        ranks: how many share the machine.
        devices: the block's GPUs, as ``CUDA_VISIBLE_DEVICES`` has them; "" where ranks have theirs already.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, count // ranks)))
    if devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices


def limit_threads(info: InstanceInfo) -> None:
    """Share the processors between the ranks of a machine, unless the person has decided.

    Left alone, every rank would start a thread for each processor. Read when a numeric library is imported.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(threads_per_rank(info)))


C10D = "torch.distributed.distributed_c10d"
PORT_ROTATION = 4  # ports that broadcasts take in turns
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
ADVICE = (
    "skyward: this function uses torch.distributed, and no process group was made: each of the {ranks} ranks worked "
    "alone. Call torch.distributed.init_process_group() in it, or give the pool the plugin torch\n"
)

_by_plugin: dict[str, str] = {}
of_task: dict[str, str] = {}  # as functions and scripts find them in tasks; commands, which may be launchers, do not
_is_gang_call = True  # whether all ranks run the call in progress; so it is where nobody has said


def torchrun_variables(info: InstanceInfo, port: int) -> dict[str, str]:
    """The variables of a rank.

    Args:
        info: its place.
        port: a port of the head node at which ranks may meet.
    """
    rank, size = str(info.rank), str(info.world_size)
    return {
        "MASTER_ADDR": info.head_addr,
        "MASTER_PORT": str(port),
        "WORLD_SIZE": size,
        "RANK": rank,
        "LOCAL_RANK": str(info.local_rank),
        "LOCAL_WORLD_SIZE": str(info.ranks_per_node),
        "NODE_RANK": str(info.node),
        "GROUP_RANK": str(info.node),
        "GROUP_WORLD_SIZE": str(info.total_nodes),
        "ROLE_NAME": "default",
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": size,
        "TORCHELASTIC_RUN_ID": info.pool or "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        # Rank 0 itself has the store, where torchrun has it in its agent.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }


def set_permanent_variables(info: InstanceInfo) -> None:
    """Set the variables for all that this process runs, as plugins do which bring the group itself."""
    _by_plugin.update(torchrun_variables(info, claim_port(info)))
    os.environ.update(_by_plugin)
    _set_tuning_defaults(info)


def set_single_process_variables(info: InstanceInfo) -> None:
    """Set the variables, where torchrun would have started this process and no other, and nobody has set them yet."""
    if _by_plugin or info.world_size > 1:
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(torchrun_variables(info, port) | {"MASTER_ADDR": "127.0.0.1"})


def _set_tuning_defaults(info: InstanceInfo) -> None:
    """What the person set of the tuning knobs stays."""
    limit_threads(info)
    if interface := find_interface(info.address):
        for variable in INTERFACES:
            os.environ.setdefault(variable, interface)


def is_gang_call() -> bool:
    """Whether all ranks run the call that this process is at, as far as it was told."""
    return _is_gang_call


class TorchrunEnvironment:
    """Has a rank's calls find the variables.

    Args:
        info: the rank's place in broadcasts.
        own: its place in tasks.
        error_file: where code may leave the cause of its end (``torch.distributed.elastic``'s ``@record`` does).
    """

    def __init__(self, info: InstanceInfo, own: InstanceInfo, error_file: str) -> None:
        os.environ["TORCHELASTIC_ERROR_FILE"] = error_file
        self._info, self._own = info, own
        self._gang_variables: dict[str, str] = {}
        self._ports: deque[str] = deque()
        self._is_gang_call: bool | None = None
        self._jax: dict[InstanceInfo, dict[str, Any]] = {}
        self._leftover_group: Any = None
        patch_jax_when_imported(self._jax_arguments)
        call_when_imported(self._replace_left_group, C10D)

    def start_call(self, together: bool) -> None:
        """A call begins.

        Args:
            together: whether all ranks run it.
        """
        global _is_gang_call
        if self._is_gang_call is not together:
            os.environ.update(self._variables(together))
        self._is_gang_call = _is_gang_call = together
        if together and not _by_plugin:
            self._rotate_port()

    def _variables(self, together: bool) -> dict[str, str]:
        if not together:
            if not of_task:
                of_task.update(torchrun_variables(self._own, claim_port(self._own)))
            return of_task
        if not (_by_plugin or self._gang_variables):
            self._ports.extend(str(claim_port(self._info)) for _ in range(PORT_ROTATION))
            self._gang_variables = torchrun_variables(self._info, int(self._ports[-1]))
            _set_tuning_defaults(self._info)
        return _by_plugin or self._gang_variables

    def _rotate_port(self) -> None:
        """A rank may begin its part while another is still at its part of the broadcast before: what that one has made
        at a port, say a store, is not to be met. All ranks run broadcasts in the same order, and so agree."""
        before = self._gang_variables["MASTER_PORT"]
        self._gang_variables["MASTER_PORT"] = self._ports[0]
        self._ports.rotate(-1)
        if os.environ.get("MASTER_PORT") == before:  # else code has said another, for what it runs later
            os.environ["MASTER_PORT"] = self._gang_variables["MASTER_PORT"]

    def _jax_arguments(self) -> dict[str, Any]:
        """What JAX has to be told."""
        info = self._info if self._is_gang_call else self._own
        if info not in self._jax:
            self._jax[info] = jax_arguments(info, claim_port(info))
        return self._jax[info]

    def end_call(self, fn: Callable[..., Any]) -> None:
        """A call has ended: say so if it meant to work with the others and did not."""
        group = sys.modules.get(C10D)
        if not self._is_gang_call:
            self._leftover_group = _default_group(group)
        elif (
            not _by_plugin
            and self._info.rank == 0
            and group is not None
            and not has_made_group(group)
            and mentions_package(fn, "torch.distributed")
        ):
            sys.stderr.write(ADVICE.format(ranks=self._info.world_size))

    def _replace_left_group(self, c10d: Any) -> None:
        """Have ``init_process_group()`` of a task replace the group that an earlier task has left.

        A sweep with more trials than ranks would fail otherwise: each trial is a process of its own to its code.
        """
        init = c10d.init_process_group

        @functools.wraps(init)
        def init_process_group(*args: Any, **kwargs: Any) -> None:
            if (
                not self._is_gang_call
                and self._leftover_group is not None
                and self._leftover_group is _default_group(c10d)
            ):
                c10d.destroy_process_group()
            init(*args, **kwargs)

        modules: list[Any] = [c10d, sys.modules["torch.distributed"]]
        for module in modules:
            module.init_process_group = init_process_group


def _default_group(c10d: Any) -> Any:
    return c10d.group.WORLD if c10d is not None and c10d.is_initialized() else None


def has_made_group(c10d: Any) -> bool:
    """Whether this process has, or had, a process group: a default store is left even of one that is gone."""
    return bool(c10d.is_initialized() or c10d._default_pg_init_method is not None)


def mentions_package(fn: Any, package: str) -> bool:
    """Whether a function's own code, or a script, names a package or something of it."""
    if isinstance(source := getattr(fn, "source", None), bytes):
        return package.encode() in source
    fn = getattr(fn, "__wrapped__", fn)
    code, space = getattr(fn, "__code__", None), getattr(fn, "__globals__", {})
    left: list[CodeType] = [code] if code is not None else []
    while left:
        code = left.pop()
        left += [each for each in code.co_consts if isinstance(each, CodeType)]
        names = set(code.co_names)
        if names.issuperset(package.split(".")) or any(
            _belongs_to_package(each, space.get(each), package) for each in names
        ):
            return True
    return False


def _belongs_to_package(name: str, value: Any, package: str) -> bool:
    home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return name == package or str(home).startswith(package)
