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
    from skyward_core.node.bundle_importer import install_deferred_importer

    install_deferred_importer(__path__[0])

# Not lazy: the module and the decorator in it share one name, and whoever is bound last would win.
from .model.function import Function, PendingFunction, PendingGroup, function, gather

__version__ = "0.1.0"

_WHERE = {
    "Compute": "api.compute",
    "Executor": "api.executor",
    "attach": "api.attach",
    "results": "api.attach",
    "sweep": "api.hyperparameter_sweep",
    "script": "tasks.shell_and_script_calls",
    "shell": "tasks.shell_and_script_calls",
    "Task": "tasks.job_files.job",
    "Image": "model.specs",
    "PipIndex": "model.specs",
    "Worker": "model.specs",
    "Options": "model.specs",
    "PoolSpec": "model.specs",
    "Nodes": "model.specs",
    "Spec": "model.specs",
    "Local": "providers.local.provider",
    "SSH": "providers.ssh.provider",
    "AWS": "providers.aws.provider",
    "Slurm": "providers.slurm.provider",
    # Names of others, whose machines are not had here.
    "GCP": "providers.unsupported_providers",
    "Hyperstack": "providers.unsupported_providers",
    "JarvisLabs": "providers.unsupported_providers",
    "Lambda": "providers.unsupported_providers",
    "LambdaCloud": "providers.unsupported_providers",
    "MassedCompute": "providers.unsupported_providers",
    "Novita": "providers.unsupported_providers",
    "RunPod": "providers.unsupported_providers",
    "Salad": "providers.unsupported_providers",
    "Scaleway": "providers.unsupported_providers",
    "TensorDock": "providers.unsupported_providers",
    "VastAI": "providers.unsupported_providers",
    "Verda": "providers.unsupported_providers",
    "Vultr": "providers.unsupported_providers",
    "Container": "providers.unsupported_providers",
    "instance_info": "runtime.instance_info",
    "is_head": "runtime.instance_info",
    "InstanceInfo": "runtime.instance_info",
    "log": "runtime.metric_logging",
    "on_preempt": "runtime.preemption",
    "post_mortem": "runtime.instance_info",
    "shard": "runtime.sharding",
    "stdout": "runtime.output_decorators",
    "stderr": "runtime.output_decorators",
    "silent": "runtime.output_decorators",
    "CallbackWriter": "runtime.output_decorators",
    "redirect_output": "runtime.output_decorators",
    "stream": "model.stream_decorator",
    "app": "api.older_api_names",
    "sky": "api.active_pool",
    "Info": "runtime.instance_info",
    "DistributedSampler": "runtime.distributed_sampler",
    "ComputePool": "api.older_api_names",
    "compute": "api.older_api_names",
    "integrations": "api.older_api_names",
    "Accelerator": "api.older_api_names",
    "NVIDIA": "api.older_api_names",
    "AMD": "api.older_api_names",
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
    "Hint": "model.errors",
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
    "DEFAULT_IMAGE": "api.older_api_names.DEFAULT_IMAGE",
    "DockerImage": "api.older_api_names.DockerImage",
    "HealthChecker": "api.older_api_names.HealthChecker",
    "LogConfig": "api.older_api_names.LogConfig",
    "MetricSpec": "api.older_api_names.MetricSpec",
    "containers": "api.older_api_names.containers",
    "emit": "runtime.metric_logging.emit",
    "metrics": "api.older_api_names.metrics",
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
    from skyward_core.api import older_api_names
    from skyward_core.api.active_pool import sky as sky
    from skyward_core.api.attach import attach as attach
    from skyward_core.api.attach import results as results
    from skyward_core.api.compute import Compute as Compute
    from skyward_core.api.executor import Executor as Executor
    from skyward_core.api.hyperparameter_sweep import sweep as sweep
    from skyward_core.api.older_api_names import AMD as AMD
    from skyward_core.api.older_api_names import NVIDIA as NVIDIA
    from skyward_core.api.older_api_names import Accelerator as Accelerator
    from skyward_core.api.older_api_names import ComputePool as ComputePool
    from skyward_core.api.older_api_names import app as app
    from skyward_core.api.older_api_names import compute as compute
    from skyward_core.api.older_api_names import integrations as integrations
    from skyward_core.api.shared_state import barrier as barrier
    from skyward_core.api.shared_state import counter as counter
    from skyward_core.api.shared_state import dict as dict
    from skyward_core.api.shared_state import lock as lock
    from skyward_core.api.shared_state import queue as queue
    from skyward_core.api.shared_state import set as set
    from skyward_core.model import durations
    from skyward_core.model.errors import Hint as Hint
    from skyward_core.model.specs import Image as Image
    from skyward_core.model.specs import Nodes as Nodes
    from skyward_core.model.specs import Options as Options
    from skyward_core.model.specs import PipIndex as PipIndex
    from skyward_core.model.specs import PoolSpec as PoolSpec
    from skyward_core.model.specs import Spec as Spec
    from skyward_core.model.specs import Worker as Worker
    from skyward_core.model.stream_decorator import stream as stream
    from skyward_core.providers.unsupported_providers import GCP as GCP
    from skyward_core.providers.unsupported_providers import Container as Container
    from skyward_core.providers.unsupported_providers import Hyperstack as Hyperstack
    from skyward_core.providers.unsupported_providers import JarvisLabs as JarvisLabs
    from skyward_core.providers.unsupported_providers import Lambda as Lambda
    from skyward_core.providers.unsupported_providers import LambdaCloud as LambdaCloud
    from skyward_core.providers.unsupported_providers import MassedCompute as MassedCompute
    from skyward_core.providers.unsupported_providers import Novita as Novita
    from skyward_core.providers.unsupported_providers import RunPod as RunPod
    from skyward_core.providers.unsupported_providers import Salad as Salad
    from skyward_core.providers.unsupported_providers import Scaleway as Scaleway
    from skyward_core.providers.unsupported_providers import TensorDock as TensorDock
    from skyward_core.providers.unsupported_providers import VastAI as VastAI
    from skyward_core.providers.unsupported_providers import Verda as Verda
    from skyward_core.providers.unsupported_providers import Vultr as Vultr
    from skyward_core.runtime.distributed_sampler import DistributedSampler as DistributedSampler
    from skyward_core.runtime.instance_info import Info as Info
    from skyward_core.runtime.instance_info import InstanceInfo as InstanceInfo
    from skyward_core.runtime.instance_info import instance_info as instance_info
    from skyward_core.runtime.instance_info import is_head as is_head
    from skyward_core.runtime.instance_info import post_mortem as post_mortem
    from skyward_core.runtime.metric_logging import emit as _emit
    from skyward_core.runtime.metric_logging import log as log
    from skyward_core.runtime.output_decorators import CallbackWriter as CallbackWriter
    from skyward_core.runtime.output_decorators import redirect_output as redirect_output
    from skyward_core.runtime.output_decorators import silent as silent
    from skyward_core.runtime.output_decorators import stderr as stderr
    from skyward_core.runtime.output_decorators import stdout as stdout
    from skyward_core.runtime.preemption import on_preempt as on_preempt
    from skyward_core.runtime.sharding import shard as shard
    from skyward_core.tasks.shell_and_script_calls import script as script
    from skyward_core.tasks.shell_and_script_calls import shell as shell

    from . import plugins as plugins
    from .model import accelerators as accelerators
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
    from .model.run_future import RunFuture as RunFuture
    from .providers.aws.provider import AWS as AWS
    from .providers.local.provider import Local as Local
    from .providers.slurm.provider import Slurm as Slurm
    from .providers.ssh.provider import SSH as SSH
    from .tasks.job_files.job import Task as Task

    Pending = PendingFunction
    Streaming = PendingFunction
    Group = PendingGroup
    PendingFunctionGroup = PendingGroup
    TaskFailedError = RunError
    time = durations
    DEFAULT_IMAGE = older_api_names.DEFAULT_IMAGE
    DockerImage = older_api_names.DockerImage
    HealthChecker = older_api_names.HealthChecker
    LogConfig = older_api_names.LogConfig
    MetricSpec = older_api_names.MetricSpec
    containers = older_api_names.containers
    metrics = older_api_names.metrics
    emit = _emit


def __getattr__(name: str) -> Any:
    if name in _MODULES or name == "time":
        return import_module(f"{__name__}.{_MODULES.get(name, 'model.durations')}")
    if name in _SAME:
        module, _, own = _SAME[name].rpartition(".")
        return getattr(import_module(f"{__name__}.{module}"), own)
    where = "api.shared_state" if name in _SHARED else _WHERE.get(name)
    if where is None:
        if not name.startswith("_"):
            from skyward_core.model.older_api_arguments import raise_removed_name

            raise_removed_name(__name__, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{where}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
