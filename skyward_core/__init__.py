"""Run a Python function on many machines as one gang of ranks.

    import skyward_core as sky

    @sky.function
    def hello() -> str:
        return f"rank {sky.instance_info().rank}"

    with sky.Compute(provider=sky.Local(), nodes=4) as compute:
        print(hello() @ compute)

Names are loaded when first used: a node, and ``--version``, load only what they need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Not lazy: the module and the decorator in it share one name, and whoever is bound last would win.
from .function import Function, PendingFunction, PendingGroup, function, gather

__version__ = "0.1.0"

_WHERE = {
    "Compute": "compute",
    "attach": "attached",
    "results": "fetched",
    "Image": "spec",
    "PipIndex": "spec",
    "Worker": "spec",
    "Options": "spec",
    "PoolSpec": "spec",
    "Local": "providers.local",
    "SSH": "providers.ssh",
    "instance_info": "runtime.info",
    "InstanceInfo": "runtime.info",
    "log": "runtime.metrics",
    "shard": "runtime.shard",
    "stdout": "runtime.output",
    "stderr": "runtime.output",
    "silent": "runtime.output",
    "DistributedSampler": "runtime.sampler",
    "ComputePool": "compat",
    "integrations": "compat",
    "Accelerator": "compat",
    "NVIDIA": "compat",
    "AMD": "compat",
    "AWS": "compat",
    "SkywardError": "errors",
    "UsageError": "errors",
    "SpecError": "errors",
    "ScriptError": "errors",
    "NotPicklableError": "errors",
    "PoolError": "errors",
    "PoolExistsError": "errors",
    "PoolGone": "errors",
    "LedgerError": "errors",
    "TeardownError": "errors",
    "HostKeyError": "errors",
    "Cancelled": "errors",
    "RemoteError": "errors",
    "RankExit": "errors",
    "RunError": "errors",
}
_MODULES = {"plugins", "accelerators", "compute"}

__all__ = [
    "Function",
    "PendingFunction",
    "PendingGroup",
    "function",
    "gather",
    *_WHERE,
    *_MODULES,
]

if TYPE_CHECKING:
    from . import accelerators as accelerators
    from . import plugins as plugins
    from .attached import attach as attach
    from .compat import AMD as AMD
    from .compat import AWS as AWS
    from .compat import NVIDIA as NVIDIA
    from .compat import Accelerator as Accelerator
    from .compat import ComputePool as ComputePool
    from .compat import compute as compute
    from .compat import integrations as integrations
    from .compute import Compute as Compute
    from .errors import Cancelled as Cancelled
    from .errors import HostKeyError as HostKeyError
    from .errors import LedgerError as LedgerError
    from .errors import NotPicklableError as NotPicklableError
    from .errors import PoolError as PoolError
    from .errors import PoolExistsError as PoolExistsError
    from .errors import PoolGone as PoolGone
    from .errors import RankExit as RankExit
    from .errors import RemoteError as RemoteError
    from .errors import RunError as RunError
    from .errors import ScriptError as ScriptError
    from .errors import SkywardError as SkywardError
    from .errors import SpecError as SpecError
    from .errors import TeardownError as TeardownError
    from .errors import UsageError as UsageError
    from .fetched import results as results
    from .providers.local import Local as Local
    from .providers.ssh import SSH as SSH
    from .runtime.info import InstanceInfo as InstanceInfo
    from .runtime.info import instance_info as instance_info
    from .runtime.metrics import log as log
    from .runtime.output import silent as silent
    from .runtime.output import stderr as stderr
    from .runtime.output import stdout as stdout
    from .runtime.sampler import DistributedSampler as DistributedSampler
    from .runtime.shard import shard as shard
    from .spec import Image as Image
    from .spec import Options as Options
    from .spec import PipIndex as PipIndex
    from .spec import PoolSpec as PoolSpec
    from .spec import Worker as Worker


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{where}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
