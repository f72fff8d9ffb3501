"""Environment variables from which torch and JAX learn their rendezvous, ports and network interfaces, and CPU limits.

The names are those of https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables. In a task the
variables describe a world of one rank, because code that waits for other ranks would hang.
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
from typing import TYPE_CHECKING, Any

from skyward_core.runtime import instance_info_and_attempt
from skyward_core.runtime.import_hooks_gc_pause_and_alias import call_when_imported
from skyward_core.runtime.instance_info_and_attempt import InstanceInfo

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import AttemptKeys

JAX_ARGUMENTS = ("coordinator_address", "num_processes", "process_id")

_shared = False


def jax_arguments(info: InstanceInfo, port: int) -> dict[str, Any]:
    """Return the arguments of ``jax.distributed.initialize()`` for a rank.

    Args:
        info: The rank and its world.
        port: Port of rank 0 on the head node.
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
    """Set those options of JAX that must be set before JAX starts its runtime."""
    import jax

    # On CPUs, XLA needs this option for collectives between processes.
    if jax.config.jax_cpu_collectives_implementation in (None, "none"):
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # Disable JAX's preemption service: it handles SIGTERM, so that a cancelled rank would continue.
    if hasattr(jax.config, "jax_enable_preemption_service"):
        jax.config.update("jax_enable_preemption_service", False)


def patch_jax_initialize(distributed: Any, place: Callable[[], Mapping[str, Any]]) -> None:
    """Patch ``jax.distributed.initialize()`` so that it fills in missing arguments for this rank.

    If the runtime is initialized already, a call with matching arguments does nothing. After ``shutdown()`` the process
    is not used for further calls.

    Args:
        distributed: The module ``jax.distributed``.
        place: Returns all arguments for a rank of this pool.
    """
    import inspect

    global _shared
    _shared = True
    initialize, shutdown = distributed.initialize, distributed.shutdown
    signature = inspect.signature(initialize)

    @functools.wraps(initialize)
    def initialize_once(*args: Any, **kwargs: Any) -> None:
        given = signature.bind_partial(*args, **kwargs).arguments
        requested = {name: value for name, value in given.items() if value is not None}
        defaults = place()
        if not distributed.is_initialized():
            configure_jax()
            missing = {} if requested.keys() & set(JAX_ARGUMENTS) else dict(defaults)
            initialize(**missing | requested)
            return
        differ = [name for name in JAX_ARGUMENTS if name in requested and requested[name] != defaults[name]]
        if differ:
            from skyward_core.model.errors import UsageError

            wants = ", ".join(f"{name}={requested[name]!r}" for name in differ)
            there = ", ".join(f"{name}={defaults[name]!r}" for name in JAX_ARGUMENTS)
            raise UsageError(
                f"jax.distributed.initialize({wants}) does not match the runtime of this pool's ranks ({there}). "
                "Remove these arguments, or use jax(init=False) to let the function initialize the runtime."
            )

    @functools.wraps(shutdown)
    def shut_down() -> None:
        was_up = distributed.is_initialized()
        shutdown()
        if was_up:
            instance_info_and_attempt.mark_not_reusable("it shut down JAX's distributed runtime")

    distributed.initialize, distributed.shutdown = initialize_once, shut_down


def patch_jax_when_imported(place: Callable[[], Mapping[str, Any]]) -> None:
    """Call :func:`patch_jax_initialize` once JAX is imported, unless a plugin has already patched JAX.

    Args:
        place: Returns all arguments for a rank of this pool.
    """

    def share(distributed: ModuleType) -> None:
        if not _shared:
            patch_jax_initialize(distributed, place)

    call_when_imported(share, "jax.distributed")


_SIOCGIFADDR = 0x8915  # Linux ioctl number, from linux/sockios.h: get the IPv4 address of a network interface


def find_interface(address: str) -> str | None:
    """Return the name of this machine's network interface that has the given IPv4 address; None if unknown.

    Without an interface name, frameworks resolve the host's own name. This takes seconds if the name server does not
    answer, and returns 127.0.0.1 on some hosts.
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
            except OSError:  # This interface has no IPv4 address.
                continue
            if inet_ntoa(answer[20:24]) == address:
                return name
    finally:
        probe.close()
    return None


def claim_port(info: InstanceInfo) -> int:
    """Return a port of the head node that no other plugin of this worker uses.

    All ranks enter the same plugins in the same order, so they agree on ports: the first plugin gets the head's port,
    which was free when the gang started. Each further plugin gets the next port.
    """
    port = _next_ports.get(info.head_port, info.head_port)
    _next_ports[info.head_port] = port + 1
    return port


_next_ports: dict[int, int] = {}


def limit_machine_share(ranks: int, devices: str) -> None:
    """Limit the CPU threads and GPUs of a rank that shares its machine, unless the user has set these limits.

    Args:
        ranks: Number of ranks that share the machine.
        devices: GPUs of the rank, in the format of ``CUDA_VISIBLE_DEVICES``; "" if ranks have them already.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, count // ranks)))
    if devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices


def limit_threads(info: InstanceInfo) -> None:
    """Set environment variables that divide the CPU threads among a machine's ranks, unless the user has set them.

    By default every rank would start one thread for each CPU. Numeric libraries read the variable when they are
    imported. Nodes with the same address share one machine (a local pool).
    """
    nodes_here = sum(peer.address == info.address for peer in info.peers) or 1
    limit_machine_share(nodes_here * info.ranks_per_node, "")


C10D = "torch.distributed.distributed_c10d"
PORT_ROTATION = 4  # number of ports that successive broadcasts use in turn
ADVICE = (
    "skyward: this function uses torch.distributed without a process group, so each of the {ranks} ranks worked "
    "separately. Call torch.distributed.init_process_group() in it, or use plugins=[sky.plugins.torch()].\n"
)

_by_plugin: dict[str, str] = {}
# torchrun's variables for tasks. Commands do not get them, because a command may be a launcher that sets them itself.
of_task: dict[str, str] = {}
_is_gang_call = True  # whether all ranks run the current call of this process; True outside of workers


def torchrun_variables(info: InstanceInfo, port: int) -> dict[str, str]:
    """Return the environment variables that torchrun would set for a rank.

    Args:
        info: The rank and its world.
        port: Port of the head node for the rendezvous.
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
        # Make rank 0 serve torch's store, because there is no torchrun agent that serves it.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }


def set_permanent_variables(info: InstanceInfo) -> None:
    """Set torchrun's variables once for all calls of this process. Plugins that create the process group need this."""
    _by_plugin.update(torchrun_variables(info, claim_port(info)))
    os.environ.update(_by_plugin)
    _set_tuning_defaults(info)


def set_single_process_variables(info: InstanceInfo) -> None:
    """Set the variables of torchrun for a single process, unless they are set."""
    if _by_plugin or info.world_size > 1:
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(torchrun_variables(info, port) | {"MASTER_ADDR": "127.0.0.1"})


def _set_tuning_defaults(info: InstanceInfo) -> None:
    """Limit CPU threads and set the network interface by environment variables, unless the user has set them."""
    limit_threads(info)
    if interface := find_interface(info.address):
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
            os.environ.setdefault(variable, interface)


def is_gang_call() -> bool:
    """Check whether all ranks run the current call of this process."""
    return _is_gang_call


class TorchrunEnvironment:
    """Setter of torchrun's environment variables before each call of a rank.

    Args:
        info: The rank and its world in broadcasts.
        own: The rank and its world in tasks.
        error_file: File for the cause of a failure. ``@record`` of ``torch.distributed.elastic`` writes this file.
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

    def start_call(self, together: bool, attempt: AttemptKeys | None = None) -> None:
        """Set torchrun's environment variables for a call.

        Args:
            together: Whether all ranks run the call.
            attempt: Attempt of the call's run; None for a run without restarts.
        """
        global _is_gang_call
        if self._is_gang_call is not together:
            os.environ.update(self._variables(together))
        if attempt is not None:
            os.environ["TORCHELASTIC_RESTART_COUNT"] = str(attempt["number"] - 1)
            os.environ["TORCHELASTIC_MAX_RESTARTS"] = str(attempt["restarts"])
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
        """Switch to another rendezvous port before each broadcast.

        A rank may start its call while a peer still runs the previous broadcast. The store of that broadcast must not
        be found at the new port. All ranks run broadcasts in the same order, so they agree on the port.
        """
        before = self._gang_variables["MASTER_PORT"]
        self._gang_variables["MASTER_PORT"] = self._ports[0]
        self._ports.rotate(-1)
        if os.environ.get("MASTER_PORT") == before:  # Do not replace another port, which user code has set.
            os.environ["MASTER_PORT"] = self._gang_variables["MASTER_PORT"]

    def _jax_arguments(self) -> dict[str, Any]:
        """Return the arguments of ``jax.distributed.initialize()`` for the current call."""
        info = self._info if self._is_gang_call else self._own
        if info not in self._jax:
            self._jax[info] = jax_arguments(info, claim_port(info))
        return self._jax[info]

    def end_call(self, fn: Callable[..., Any]) -> None:
        """Print advice if the ended call's function used torch.distributed without a process group."""
        group = sys.modules.get(C10D)
        if not self._is_gang_call:
            self._leftover_group = group and _default_group(group)
        elif (
            not _by_plugin
            and self._info.rank == 0
            and group is not None
            and not group.is_initialized()
            # PyTorch keeps this value after a process group is destroyed, so None means that there was no group.
            and group._default_pg_init_method is None
            and mentions_package(fn, "torch.distributed")
        ):
            sys.stderr.write(ADVICE.format(ranks=self._info.world_size))

    def _replace_left_group(self, c10d: Any) -> None:
        """Patch torch's ``init_process_group()`` so that a task replaces the process group of an earlier task.

        Without the patch a sweep with more trials than ranks would fail, because each trial expects a fresh process.
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


def mentions_package(fn: Any, package: str) -> bool:
    """Check whether a function's own code, or a script, uses a package."""
    if isinstance(source := getattr(fn, "source", None), bytes):
        return package.encode() in source
    fn = getattr(fn, "__wrapped__", fn)
    code, space = getattr(fn, "__code__", None), getattr(fn, "__globals__", {})
    pending: list[CodeType] = [code] if code is not None else []
    while pending:
        code = pending.pop()
        pending += [each for each in code.co_consts if isinstance(each, CodeType)]
        names = set(code.co_names)
        if names.issuperset(package.split(".")) or any(
            _belongs_to_package(each, space.get(each), package) for each in names
        ):
            return True
    return False


def _belongs_to_package(name: str, value: Any, package: str) -> bool:
    home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return name == package or str(home).startswith(package)
