"""Plugin ``torch``: the process group of torch.distributed on every rank.

Follows https://docs.pytorch.org/docs/stable/distributed.html#environment-variable-initialization.
"""

from __future__ import annotations

import functools
import inspect
import os
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from skyward_core.model.errors import UsageError
from skyward_core.plugins.plugin import Plugin, enter_late, has_cuda, requirement, with_pip
from skyward_core.runtime import instance_info_and_attempt
from skyward_core.runtime.framework_rendezvous_and_thread_limits import mentions_package, set_permanent_variables
from skyward_core.runtime.instance_info_and_attempt import InstanceInfo, set_phase

if TYPE_CHECKING:
    from skyward_core.model.specs import Image, PoolSpec


def patch_init_process_group(info: InstanceInfo, usable: Callable[[str], str]) -> Callable[[], None]:
    """Let ``init_process_group()`` return the existing process group if its arguments match.

    After a function has called ``destroy_process_group()``, its process gets no further calls.

    Args:
        info: The rank's place.
        usable: Returns the usable backend of this machine for a requested one.

    Returns:
        A function that destroys the group if it exists.
    """
    from torch import distributed as dist
    from torch.distributed import distributed_c10d as c10d

    init, destroy = c10d.init_process_group, c10d.destroy_process_group
    made: Any = c10d._get_default_group()
    signature = inspect.signature(init)

    @functools.wraps(init)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        if not dist.is_initialized() or c10d._get_default_group() is not made:
            init(*args, **kwargs)
            return
        requested = signature.bind(*args, **kwargs).arguments
        if (backend := requested.get("backend")) is not None:
            requested["backend"] = usable(backend)
        _check_group_arguments(c10d, made, requested, info)
        if isinstance(timeout := requested.get("timeout"), timedelta):
            c10d._set_pg_timeout(timeout, made)

    @functools.wraps(destroy)
    def destroy_process_group(group: Any = None) -> None:
        is_ours = (group is None or group is made) and dist.is_initialized()
        destroy(group)
        if is_ours:
            instance_info_and_attempt.mark_not_reusable("it destroyed the process group of all ranks")

    for module in (dist, c10d):
        module.init_process_group = init_process_group
        module.destroy_process_group = destroy_process_group

    def end() -> None:
        if dist.is_initialized():
            destroy()

    return end


def _check_group_arguments(c10d: Any, made: Any, requested: dict[str, Any], info: InstanceInfo) -> None:
    """Check that arguments of ``init_process_group()`` match the existing group.

    Raises:
        UsageError: If they do not match. The message describes the arguments and the existing group.
    """
    there = c10d._world.pg_backend_config[made]
    has = dict(pair.split(":") for pair in there.split(","))
    backend = requested.get("backend")
    wants = {} if backend is None else c10d.BackendConfig(c10d.Backend(backend)).device_backend_map
    differ = []
    if any(has.get(device) != str(name) for device, name in wants.items()):
        differ.append(f"backend={backend!r}")
    for name, own in (("world_size", info.world_size), ("rank", info.rank)):
        if requested.get(name, -1) not in (-1, own):
            differ.append(f"{name}={requested[name]!r}")
    meets_at = f"tcp://{info.head_addr}:"
    method = requested.get("init_method")
    if not (method is None or method == "env://" or str(method).startswith(meets_at)):
        differ.append(f"init_method={method!r}")
    differ += [f"{name}=..." for name in ("store", "pg_options") if requested.get(name) is not None]
    if differ:
        raise UsageError(
            f"init_process_group({', '.join(differ)}) does not match the process group that the plugin "
            f"torch created (backend {there}, world_size {info.world_size}, rank {info.rank}). "
            "Remove these arguments, set torch(backend=...), or use torch(init=False) to let the function create "
            "the group."
        )


# Variables for the number of collectives in PyTorch's flight recorder, from which `torchfrtrace` finds missing ranks.
# The value set below is the default of PyTorch 2.13; older releases record none by default, and use the second name.
FLIGHT_RECORDER_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
FLIGHT_RECORDER_ENTRIES = "2000"
WHEELS = "https://download.pytorch.org/whl"


@dataclass(frozen=True)
class Torch(Plugin):
    """PyTorch with its process group initialized on every rank.

    Args:
        backend: Backend of the process group, such as "nccl" or "gloo". None for nccl if the rank sees a CUDA device,
            otherwise gloo. On a local pool without CUDA, nccl becomes gloo, with a warning.
        cuda: Name of the CUDA wheel index, used if the pool's accelerator supports CUDA.
        version: "latest", an exact version, or constraints such as ">=2.3".
        vision: Version of torchvision. None to not install it.
        audio: Version of torchaudio. None to not install it.
        init: Create the process group before the function runs. A later ``init_process_group()`` in the function
            returns that group if its arguments match. False only sets the variables of torchrun.
    """

    name: ClassVar[str] = "torch"
    help: ClassVar[str] = "PyTorch, with a process group across all ranks"
    place: ClassVar[int] = 1
    needs_peers = "a process group of all ranks"
    backend: str | None = field(default=None, metadata={"help": "backend (default: nccl with CUDA, else gloo)"})
    cuda: str = field(default="cu128", metadata={"help": "name of the CUDA wheel index"})
    version: str = field(default="latest", metadata={"help": "version of torch"})
    vision: str | None = field(default=None, metadata={"help": "version of torchvision"})
    audio: str | None = field(default=None, metadata={"help": "version of torchaudio"})
    init: bool = field(default=True, metadata={"help": "create the process group, instead of setting variables only"})

    def transform(self, image: Image, pool_spec: PoolSpec) -> Image:
        from skyward_core.model.specs import PipIndex

        versions = {"torch": self.version, "torchvision": self.vision, "torchaudio": self.audio}
        packages = {name: version for name, version in versions.items() if version is not None}
        index = PipIndex(url=f"{WHEELS}/{self.cuda if has_cuda(pool_spec) else 'cpu'}", packages=tuple(packages))
        return with_pip(image, (requirement(name, version) for name, version in packages.items()), index)

    def around_process(self, info: InstanceInfo) -> AbstractContextManager[object]:
        if info.world_size > 1 and not any(name in os.environ for name in FLIGHT_RECORDER_VARIABLES):
            os.environ[FLIGHT_RECORDER_VARIABLES[0]] = FLIGHT_RECORDER_ENTRIES
        if not self.init:
            if info.world_size > 1:
                set_permanent_variables(info)
            return nullcontext()
        return process_group(info, self.backend)


@contextmanager
def process_group(info: InstanceInfo, backend: str | None = None) -> Iterator[None]:
    """Create PyTorch's default process group for the life of the worker. Do nothing for a single rank, or if a group
    exists already.
    """
    if info.world_size < 2:
        yield
        return
    if "torch" in sys.modules and sys.modules["torch"].distributed.is_initialized():
        yield  # another plugin has already created the process group
        return
    # called before torch is imported, because the import reads the number of threads from the environment
    set_permanent_variables(info)
    set_phase("importing")
    import torch
    import torch.distributed as dist

    cuda = torch.cuda.is_available()
    if cuda:
        # If a rank sees several devices, it uses the device whose index is its local rank. If it sees only one, it uses
        # that device.
        torch.cuda.set_device(info.local_rank % torch.cuda.device_count())
    set_phase("joining")
    dist.init_process_group(
        _usable_backend(backend, info, cuda=cuda), store=_make_store(info), rank=info.rank, world_size=info.world_size
    )
    end = patch_init_process_group(info, lambda requested: _usable_backend(requested, info, cuda=cuda))
    try:
        yield
    finally:
        end()


def _make_store(info: InstanceInfo) -> Any:
    """Return the process group's store: like the store of env://, but it listens only on the head's address."""
    from torch.distributed import PrefixStore, TCPStore
    from torch.distributed.constants import default_pg_timeout

    port = int(os.environ["MASTER_PORT"])
    listening = None
    if info.rank == 0:
        family = socket.AF_INET6 if ":" in info.head_addr else socket.AF_INET
        with socket.create_server((info.head_addr, port), family=family, backlog=info.world_size) as server:
            listening = server.detach()  # the store takes ownership of the socket, and closes it
    store = TCPStore(
        info.head_addr,
        port,
        info.world_size,
        is_master=listening is not None,
        timeout=default_pg_timeout,
        multi_tenant=True,
        master_listen_fd=listening,
    )
    return PrefixStore("default_pg", store)


def _usable_backend(backend: str | None, info: InstanceInfo, *, cuda: bool) -> str:
    """Return the requested backend, or gloo instead of nccl on a local pool without CUDA."""
    if backend is None:
        return "nccl" if cuda else "gloo"
    if backend == "nccl" and not cuda and info.head_addr.startswith("127."):
        warnings.warn("no CUDA device on this machine: the process group uses gloo instead of nccl", stacklevel=2)
        return "gloo"
    return backend


# name of the attribute that marks functions whose decorator enters plugins itself
BRINGS = "__skyward_brings__"


@dataclass(frozen=True)
class Automatic(Plugin):
    """Plugin that creates the process group before the first broadcast of a function whose code uses
    ``torch.distributed``.
    """

    name: ClassVar[str] = "automatic"
    help: ClassVar[str] = "the process group of functions that use torch.distributed"

    def decorate(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        if getattr(fn, BRINGS, False) or not mentions_package(fn, "torch.distributed"):
            return fn
        return call_before(_ensure_process_group, fn)


def call_before(first: Callable[[], None], fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls ``first`` and then ``fn``. For a generator function, return a generator function."""
    if inspect.isgeneratorfunction(fn):

        @functools.wraps(fn)
        def stream(*args: Any, **kwargs: Any) -> Any:
            first()
            return (yield from fn(*args, **kwargs))

        return stream

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        first()
        return fn(*args, **kwargs)

    return call


def _ensure_process_group() -> None:
    """Create the process group of all ranks for broadcasts. Do nothing for a task, which has a world of one rank."""
    if instance_info_and_attempt.instance_info().world_size > 1:
        enter_late((Torch(),))


PLUGIN = Torch
