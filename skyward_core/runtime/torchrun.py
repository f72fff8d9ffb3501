"""What torchrun tells a process of its place, for code that was written for it.

The names are those of https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables. In a task they
describe a world of one rank: code that waited for other ranks there would wait for ever.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
from collections import deque
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any

from .info import InstanceInfo
from .jax_runtime import once_imported, place_of, share_once_imported
from .network import claim_port, interface_of, limit_threads

C10D = "torch.distributed.distributed_c10d"
TURNS = 4  # ports that broadcasts take in turns
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
ADVICE = (
    "skyward: this function uses torch.distributed, and no process group was made: each of the {ranks} ranks worked "
    "alone. Call torch.distributed.init_process_group() in it, or give the pool the plugin torch\n"
)

_by_plugin: dict[str, str] = {}
of_task: dict[
    str, str
] = {}  # as functions and scripts find them in tasks; commands, which may be launchers, do not
_together = True  # whether all ranks run the call in progress; so it is where nobody has said


def variables(info: InstanceInfo, port: int) -> dict[str, str]:
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


def set_for_good(info: InstanceInfo) -> None:
    """Set the variables for all that this process runs, as plugins do which bring the group itself."""
    _by_plugin.update(variables(info, claim_port(info)))
    os.environ.update(_by_plugin)
    _limit(info)


def set_alone(info: InstanceInfo) -> None:
    """Set the variables, where torchrun would have started this process and no other, and nobody has set them yet."""
    if _by_plugin or info.world_size > 1:
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(variables(info, port) | {"MASTER_ADDR": "127.0.0.1"})


def _limit(info: InstanceInfo) -> None:
    """What the person set of the tuning knobs stays."""
    limit_threads(info)
    if interface := interface_of(info.address):
        for variable in INTERFACES:
            os.environ.setdefault(variable, interface)


def together() -> bool:
    """Whether all ranks run the call that this process is at, as far as it was told."""
    return _together


class ForCalls:
    """Has a rank's calls find the variables.

    Args:
        info: the rank's place in broadcasts.
        own: its place in tasks.
        error_file: where code may leave the cause of its end (``torch.distributed.elastic``'s ``@record`` does).
    """

    def __init__(self, info: InstanceInfo, own: InstanceInfo, error_file: str) -> None:
        os.environ["TORCHELASTIC_ERROR_FILE"] = error_file
        self._info, self._own = info, own
        self._ours: dict[str, str] = {}
        self._ports: deque[str] = deque()
        self._together: bool | None = None
        self._jax: dict[InstanceInfo, dict[str, Any]] = {}
        self._left: Any = None
        share_once_imported(self._place_in_jax)
        once_imported(C10D, self._replace_left_group)

    def begin(self, together: bool) -> None:
        """A call begins.

        Args:
            together: whether all ranks run it.
        """
        global _together
        if self._together is not together:
            os.environ.update(self._variables(together))
        self._together = _together = together
        if together and not _by_plugin:
            self._next_port()

    def _variables(self, together: bool) -> dict[str, str]:
        if not together:
            if not of_task:
                of_task.update(variables(self._own, claim_port(self._own)))
            return of_task
        if not (_by_plugin or self._ours):
            self._ports.extend(str(claim_port(self._info)) for _ in range(TURNS))
            self._ours = variables(self._info, int(self._ports[-1]))
            _limit(self._info)
        return _by_plugin or self._ours

    def _next_port(self) -> None:
        """A rank may begin its part while another is still at its part of the broadcast before: what that one has made
        at a port, say a store, is not to be met. All ranks run broadcasts in the same order, and so agree."""
        before = self._ours["MASTER_PORT"]
        self._ours["MASTER_PORT"] = self._ports[0]
        self._ports.rotate(-1)
        if os.environ.get("MASTER_PORT") == before:  # else code has said another, for what it runs later
            os.environ["MASTER_PORT"] = self._ours["MASTER_PORT"]

    def _place_in_jax(self) -> dict[str, Any]:
        """What JAX has to be told."""
        info = self._info if self._together else self._own
        if info not in self._jax:
            self._jax[info] = place_of(info, claim_port(info))
        return self._jax[info]

    def end(self, fn: Callable[..., Any]) -> None:
        """A call has ended: say so if it meant to work with the others and did not."""
        group = sys.modules.get(C10D)
        if not self._together:
            self._left = _default_group(group)
        elif (
            not _by_plugin
            and self._info.rank == 0
            and group is not None
            and not made_groups(group)
            and mentions(fn, "torch.distributed")
        ):
            sys.stderr.write(ADVICE.format(ranks=self._info.world_size))

    def _replace_left_group(self, c10d: Any) -> None:
        """Have ``init_process_group()`` of a task replace the group that an earlier task has left.

        A sweep with more trials than ranks would fail otherwise: each trial is a process of its own to its code.
        """
        init = c10d.init_process_group

        @functools.wraps(init)
        def init_process_group(*args: Any, **kwargs: Any) -> None:
            if not self._together and self._left is not None and self._left is _default_group(c10d):
                c10d.destroy_process_group()
            init(*args, **kwargs)

        modules: list[Any] = [c10d, sys.modules["torch.distributed"]]
        for module in modules:
            module.init_process_group = init_process_group


def _default_group(c10d: Any) -> Any:
    return c10d.group.WORLD if c10d is not None and c10d.is_initialized() else None


def made_groups(c10d: Any) -> bool:
    """Whether this process has, or had, a process group: a default store is left even of one that is gone."""
    return bool(c10d.is_initialized() or c10d._default_pg_init_method is not None)


def mentions(fn: Any, package: str) -> bool:
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
            _is_of(each, space.get(each), package) for each in names
        ):
            return True
    return False


def _is_of(name: str, value: Any, package: str) -> bool:
    home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return name == package or str(home).startswith(package)
