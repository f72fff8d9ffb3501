"""PyTorch: its wheels by the pool's accelerator, and a process group that is up before the function runs.

Set up as the environment variable initialisation of
https://docs.pytorch.org/docs/stable/distributed.html#environment-variable-initialization wants it.
"""

from __future__ import annotations

import os
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from ...runtime.phase import enter
from ...runtime.torchrun import set_for_good
from ..base import Plugin
from ..support.requirements import has_cuda, requirement, with_pip
from ..support.torch_group import shared_with_scripts

if TYPE_CHECKING:
    from ...model.spec import Image, PoolSpec
    from ...runtime.info import InstanceInfo

# How many collectives it remembers, for `torchfrtrace` to tell who has not joined which: as many as PyTorch 2.13 does
# by itself; older ones remembered none. The second name is the older one.
RECORDED = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
ENTRIES = "2000"
WHEELS = "https://download.pytorch.org/whl"


@dataclass(frozen=True)
class Torch(Plugin):
    """PyTorch with its process group initialised on every rank.

    Args:
        backend: of the process group, such as "nccl" or "gloo"; None for nccl where the rank sees a CUDA
            device, else gloo. On a local pool without CUDA, nccl means gloo, with a warning.
        cuda: name of the CUDA wheel index, used when the pool's accelerator has CUDA.
        version: "latest", a bare version to pin, or constraints such as ">=2.3".
        vision: version of torchvision; None installs none.
        audio: version of torchaudio; None installs none.
        init: make the process group before the function runs. Code that calls ``init_process_group()`` itself is
            given that one, where its arguments agree. False sets the variables of torchrun only.
    """

    name: ClassVar[str] = "torch"
    help: ClassVar[str] = "PyTorch, with a process group across all ranks"
    place: ClassVar[int] = 1
    needs_peers = "a process group of all ranks"
    backend: str | None = field(
        default=None, metadata={"help": "of the process group; nccl where there is CUDA, else gloo"}
    )
    cuda: str = field(default="cu128", metadata={"help": "CUDA wheel index"})
    version: str = field(default="latest", metadata={"help": "of torch"})
    vision: str | None = field(default=None, metadata={"help": "version of torchvision"})
    audio: str | None = field(default=None, metadata={"help": "version of torchaudio"})
    init: bool = field(default=True, metadata={"help": "make the process group; else set variables only"})

    def transform(self, image: Image, pool_spec: PoolSpec) -> Image:
        from ...model.spec import PipIndex

        wanted = {"torch": self.version, "torchvision": self.vision, "torchaudio": self.audio}
        packages = {name: version for name, version in wanted.items() if version is not None}
        index = PipIndex(
            url=f"{WHEELS}/{self.cuda if has_cuda(pool_spec) else 'cpu'}", packages=tuple(packages)
        )
        return with_pip(image, (requirement(name, version) for name, version in packages.items()), index)

    @contextmanager
    def around_process(self, info: InstanceInfo) -> Iterator[None]:
        if info.world_size > 1 and not any(name in os.environ for name in RECORDED):
            os.environ[RECORDED[0]] = ENTRIES
        if not self.init:
            if info.world_size > 1:
                set_for_good(info)
            yield
            return
        with process_group(info, self.backend):
            yield


@contextmanager
def process_group(info: InstanceInfo, backend: str | None = None) -> Iterator[None]:
    """PyTorch's default process group while the worker lives; nothing on one rank, or where it is up."""
    if info.world_size < 2:
        yield
        return
    if "torch" in sys.modules and sys.modules["torch"].distributed.is_initialized():
        yield  # another plugin's
        return
    set_for_good(info)  # before the import: the thread count is read there
    enter("importing")
    import torch
    import torch.distributed as dist

    cuda = torch.cuda.is_available()
    if cuda:
        # A rank that sees its own device only has index 0; one that sees them all has its local rank's.
        torch.cuda.set_device(info.local_rank % torch.cuda.device_count())
    enter("joining")
    dist.init_process_group(
        _usable(backend, info, cuda=cuda), store=_store(info), rank=info.rank, world_size=info.world_size
    )
    end = shared_with_scripts(info, lambda asked: _usable(asked, info, cuda=cuda))
    try:
        yield
    finally:
        end()


def _store(info: InstanceInfo) -> Any:
    """The store over which ranks meet, as env:// makes it, but for where it listens: that would be every address."""
    from torch.distributed import PrefixStore, TCPStore
    from torch.distributed.constants import default_pg_timeout

    port = int(os.environ["MASTER_PORT"])
    listening = None
    if info.rank == 0:
        family = socket.AF_INET6 if ":" in info.head_addr else socket.AF_INET
        with socket.create_server((info.head_addr, port), family=family, backlog=info.world_size) as server:
            listening = server.detach()  # the store's, from here on
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


def _usable(backend: str | None, info: InstanceInfo, *, cuda: bool) -> str:
    """The backend asked for; gloo for nccl where a script for GPUs is tried out on a machine without any."""
    if backend is None:
        return "nccl" if cuda else "gloo"
    if backend == "nccl" and not cuda and info.head_addr.startswith("127."):
        warnings.warn("no CUDA device on this machine: the process group uses gloo for nccl", stacklevel=2)
        return "gloo"
    return backend


PLUGIN = Torch
