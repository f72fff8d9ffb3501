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

if __path__[0].endswith("/all.zip/skyward_core"):  # on a node, which has the rest of us in another file
    from .node.rest_of_bundle import have_rest

    have_rest(__path__[0])

# Not lazy: the module and the decorator in it share one name, and whoever is bound last would win.
from .model.function import Function, PendingFunction, PendingGroup, function, gather

__version__ = "0.1.0"

_WHERE = {
    "Compute": "front.api.compute",
    "Executor": "front.api.executor",
    "attach": "front.api.attach",
    "results": "front.api.fetched_results",
    "sweep": "front.api.trials",
    "script": "tasks.whole_script",
    "shell": "tasks.shell",
    "Task": "tasks.job_files.job",
    "Image": "model.spec",
    "PipIndex": "model.spec",
    "Worker": "model.spec",
    "Options": "model.spec",
    "PoolSpec": "model.spec",
    "Nodes": "model.node_range",
    "Spec": "model.spec",
    "Local": "providers.local.provider",
    "SSH": "providers.ssh.provider",
    "AWS": "providers.aws.provider",
    "Slurm": "providers.slurm.provider",
    # Names of others, whose machines are not had here.
    "GCP": "providers.elsewhere.names",
    "Hyperstack": "providers.elsewhere.names",
    "JarvisLabs": "providers.elsewhere.names",
    "Lambda": "providers.elsewhere.names",
    "LambdaCloud": "providers.elsewhere.names",
    "MassedCompute": "providers.elsewhere.names",
    "Novita": "providers.elsewhere.names",
    "RunPod": "providers.elsewhere.names",
    "Salad": "providers.elsewhere.names",
    "Scaleway": "providers.elsewhere.names",
    "TensorDock": "providers.elsewhere.names",
    "VastAI": "providers.elsewhere.names",
    "Verda": "providers.elsewhere.names",
    "Vultr": "providers.elsewhere.names",
    "Container": "providers.elsewhere.names",
    "instance_info": "runtime.info",
    "is_head": "runtime.info",
    "InstanceInfo": "runtime.info",
    "log": "runtime.metrics",
    "on_preempt": "runtime.preempt",
    "post_mortem": "runtime.post_mortem",
    "shard": "runtime.shard",
    "stdout": "runtime.output",
    "stderr": "runtime.output",
    "silent": "runtime.output",
    "CallbackWriter": "runtime.output",
    "redirect_output": "runtime.output",
    "stream": "model.stream",
    "app": "front.api.older_app",
    "sky": "front.api.active_pool",
    "Info": "runtime.info",
    "DistributedSampler": "runtime.sampler",
    "ComputePool": "front.api.older_names",
    "compute": "front.api.older_names",
    "integrations": "front.api.older_names",
    "Accelerator": "front.api.older_names",
    "NVIDIA": "front.api.older_names",
    "AMD": "front.api.older_names",
    "SkywardError": "model.errors",
    "UsageError": "model.errors",
    "SpecError": "model.errors",
    "ScriptError": "model.errors",
    "JobFileError": "model.errors",
    "NotPicklableError": "model.errors",
    "PoolError": "model.errors",
    "PoolExistsError": "model.errors",
    "PoolGone": "model.errors",
    "Unreachable": "model.errors",
    "CredentialsRefused": "model.errors",
    "NoCapacity": "model.errors",
    "TooFewHosts": "model.errors",
    "Hint": "model.hint",
    "RunFuture": "model.run_future",
    "LedgerError": "model.errors",
    "TeardownError": "model.errors",
    "HostKeyError": "model.errors",
    "Cancelled": "model.errors",
    "RemoteError": "model.errors",
    "RankExit": "model.errors",
    "RunError": "model.errors",
}
# Not in __all__: `from skyward_core import *` is to leave a script its dict and set. Nor is the module "time".
_SHARED = ("dict", "set", "counter", "queue", "lock", "barrier")
_SAME = {  # by older words; not in __all__ either
    "Pending": "model.function.PendingFunction",
    "Streaming": "model.function.PendingFunction",
    "PendingFunctionGroup": "model.function.PendingGroup",
    "Group": "model.function.PendingGroup",
    "TaskFailedError": "model.errors.RunError",
    "DEFAULT_IMAGE": "model.older_values.DEFAULT_IMAGE",
    "DockerImage": "model.older_values.DockerImage",
    "HealthChecker": "model.older_values.HealthChecker",
    "LogConfig": "model.older_values.LogConfig",
    "MetricSpec": "model.older_values.MetricSpec",
    "containers": "model.older_values.containers",
    "emit": "runtime.older_emit.emit",
    "metrics": "model.older_values.metrics",
}
_MODULES = {"plugins": "plugins", "accelerators": "model.accelerators"}

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
    from . import plugins as plugins
    from .front.api.active_pool import sky as sky
    from .front.api.attach import attach as attach
    from .front.api.compute import Compute as Compute
    from .front.api.executor import Executor as Executor
    from .front.api.fetched_results import results as results
    from .front.api.older_app import app as app
    from .front.api.older_names import AMD as AMD
    from .front.api.older_names import NVIDIA as NVIDIA
    from .front.api.older_names import Accelerator as Accelerator
    from .front.api.older_names import ComputePool as ComputePool
    from .front.api.older_names import compute as compute
    from .front.api.older_names import integrations as integrations
    from .front.api.shared_names import barrier as barrier
    from .front.api.shared_names import counter as counter
    from .front.api.shared_names import dict as dict
    from .front.api.shared_names import lock as lock
    from .front.api.shared_names import queue as queue
    from .front.api.shared_names import set as set
    from .front.api.trials import sweep as sweep
    from .model import accelerators as accelerators
    from .model import lengths_of_time
    from .model import older_values as _older_values
    from .model.errors import Cancelled as Cancelled
    from .model.errors import CredentialsRefused as CredentialsRefused
    from .model.errors import HostKeyError as HostKeyError
    from .model.errors import JobFileError as JobFileError
    from .model.errors import LedgerError as LedgerError
    from .model.errors import NoCapacity as NoCapacity
    from .model.errors import NotPicklableError as NotPicklableError
    from .model.errors import PoolError as PoolError
    from .model.errors import PoolExistsError as PoolExistsError
    from .model.errors import PoolGone as PoolGone
    from .model.errors import RankExit as RankExit
    from .model.errors import RemoteError as RemoteError
    from .model.errors import RunError as RunError
    from .model.errors import ScriptError as ScriptError
    from .model.errors import SkywardError as SkywardError
    from .model.errors import SpecError as SpecError
    from .model.errors import TeardownError as TeardownError
    from .model.errors import TooFewHosts as TooFewHosts
    from .model.errors import Unreachable as Unreachable
    from .model.errors import UsageError as UsageError
    from .model.hint import Hint as Hint
    from .model.node_range import Nodes as Nodes
    from .model.run_future import RunFuture as RunFuture
    from .model.spec import Image as Image
    from .model.spec import Options as Options
    from .model.spec import PipIndex as PipIndex
    from .model.spec import PoolSpec as PoolSpec
    from .model.spec import Spec as Spec
    from .model.spec import Worker as Worker
    from .model.stream import stream as stream
    from .providers.aws.provider import AWS as AWS
    from .providers.elsewhere.names import GCP as GCP
    from .providers.elsewhere.names import Container as Container
    from .providers.elsewhere.names import Hyperstack as Hyperstack
    from .providers.elsewhere.names import JarvisLabs as JarvisLabs
    from .providers.elsewhere.names import Lambda as Lambda
    from .providers.elsewhere.names import LambdaCloud as LambdaCloud
    from .providers.elsewhere.names import MassedCompute as MassedCompute
    from .providers.elsewhere.names import Novita as Novita
    from .providers.elsewhere.names import RunPod as RunPod
    from .providers.elsewhere.names import Salad as Salad
    from .providers.elsewhere.names import Scaleway as Scaleway
    from .providers.elsewhere.names import TensorDock as TensorDock
    from .providers.elsewhere.names import VastAI as VastAI
    from .providers.elsewhere.names import Verda as Verda
    from .providers.elsewhere.names import Vultr as Vultr
    from .providers.local.provider import Local as Local
    from .providers.slurm.provider import Slurm as Slurm
    from .providers.ssh.provider import SSH as SSH
    from .runtime.info import Info as Info
    from .runtime.info import InstanceInfo as InstanceInfo
    from .runtime.info import instance_info as instance_info
    from .runtime.info import is_head as is_head
    from .runtime.metrics import log as log
    from .runtime.older_emit import emit as _emit
    from .runtime.output import CallbackWriter as CallbackWriter
    from .runtime.output import redirect_output as redirect_output
    from .runtime.output import silent as silent
    from .runtime.output import stderr as stderr
    from .runtime.output import stdout as stdout
    from .runtime.post_mortem import post_mortem as post_mortem
    from .runtime.preempt import on_preempt as on_preempt
    from .runtime.sampler import DistributedSampler as DistributedSampler
    from .runtime.shard import shard as shard
    from .tasks.job_files.job import Task as Task
    from .tasks.shell import shell as shell
    from .tasks.whole_script import script as script

    Pending = PendingFunction
    Streaming = PendingFunction
    Group = PendingGroup
    PendingFunctionGroup = PendingGroup
    TaskFailedError = RunError
    time = lengths_of_time
    DEFAULT_IMAGE = _older_values.DEFAULT_IMAGE
    DockerImage = _older_values.DockerImage
    HealthChecker = _older_values.HealthChecker
    LogConfig = _older_values.LogConfig
    MetricSpec = _older_values.MetricSpec
    containers = _older_values.containers
    metrics = _older_values.metrics
    emit = _emit


def __getattr__(name: str) -> Any:
    if name in _MODULES or name == "time":
        return import_module(f"{__name__}.{_MODULES.get(name, 'model.lengths_of_time')}")
    if name in _SAME:
        module, _, own = _SAME[name].rpartition(".")
        return getattr(import_module(f"{__name__}.{module}"), own)
    where = "front.api.shared_names" if name in _SHARED else _WHERE.get(name)
    if where is None:
        if not name.startswith("_"):
            from .model.not_here import refuse

            refuse(__name__, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{where}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
