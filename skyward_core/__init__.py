"""Run a Python function on many machines as one gang of ranks.

    import skyward_core as sky

    @sky.function
    def hello() -> str:
        return f"rank {sky.instance_info().rank}"

    with sky.Compute(provider=sky.Local(), nodes=4) as compute:
        print(hello() @ compute)

Names are loaded when first used: a node, and ``--version``, load only what they need. ``python -m tests.public_names``
generates the stub beside this file, which type checkers and editors read.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

if __path__[0].endswith("/all.zip/skyward_core"):
    # On a node, the bundle's first archive does not have all modules. Import the other modules from a second archive.
    from skyward_core.node.library_bundle_importer import install_deferred_importer

    install_deferred_importer(__path__[0])

# Imported eagerly: the module `model.function` and its decorator have the same name, and a later import of the module
# would replace the decorator.
from .model.function import Function, PendingFunction, PendingGroup, function, gather

__version__ = "0.1.0"

_PUBLIC = {  # module -> its public names
    "api.active_pool_and_operand_checks": "sky",
    "api.attach_and_results": "attach results",
    "api.compute": "Compute",
    "api.executor": "Executor",
    "api.hyperparameter_sweep": "sweep",
    "api.older_api_names": "AMD NVIDIA Accelerator ComputePool app compute integrations",
    "model.errors": "Cancelled CredentialsRefused Hint HostKeyError JobFileError LedgerError NoCapacity "
    "NotPicklableError PoolError PoolExistsError PoolGone RankExit RemoteError RunError ScriptError SkywardError "
    "SpecError TeardownError TooFewHosts Unreachable UsageError",
    "model.function": "stream",
    "model.run_future": "RunFuture",
    "model.specs": "Image Nodes Options PipIndex PoolSpec Spec Worker",
    "providers.aws.provider": "AWS",
    "providers.local.provider": "Local",
    "providers.slurm.provider": "Slurm",
    "providers.ssh.provider": "SSH",
    "providers.unsupported_providers": "Container GCP Hyperstack JarvisLabs Lambda LambdaCloud MassedCompute Novita "
    "RunPod Salad Scaleway TensorDock VastAI Verda Vultr",
    "runtime.distributed_sampler": "DistributedSampler",
    "runtime.instance_info_and_attempt": "Attempt Info InstanceInfo attempt checkpoint_dir instance_info is_head "
    "post_mortem",
    "runtime.metric_logging": "log log_image",
    "runtime.output_decorators": "CallbackWriter redirect_output silent stderr stdout",
    "runtime.preemption": "on_preempt",
    "runtime.sharding": "shard",
    "tasks.job_file": "Task",
    "tasks.shell_and_script_calls": "script shell",
}
# Names outside of __all__: older names, and names that would replace Python's own after `from skyward_core import *`.
_UNLISTED = {
    "api.older_api_names": "DEFAULT_IMAGE DockerImage HealthChecker LogConfig MetricSpec containers metrics",
    "api.shared_state": "barrier counter dict lock queue set",
    "model.errors": "TaskFailedError=RunError",
    "model.function": "Group=PendingGroup Pending=PendingFunction PendingFunctionGroup=PendingGroup "
    "Streaming=PendingFunction",
    "runtime.metric_logging": "emit",
}
_MODULES = {"accelerators": "model.accelerators", "plugins": "plugins", "time": "model.older_time_functions"}


def _places(table: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Return a mapping of each public name to the module that defines it and its name there."""
    found = {}
    for module, names in table.items():
        for name in names.split():
            alias, _, own = name.partition("=")
            found[alias] = module, own or alias
    return found


_PLACES = _places(_PUBLIC)
__all__ = [
    "Function",
    "PendingFunction",
    "PendingGroup",
    "function",
    "gather",
    "accelerators",
    "plugins",
    *_PLACES,
]
_PLACES |= _places(_UNLISTED)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{_MODULES[name]}")
    if name not in _PLACES:
        if not name.startswith("_"):
            from skyward_core.model.deprecated_and_unknown_arguments import raise_removed_name

            raise_removed_name(__name__, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, own = _PLACES[name]
    value = getattr(import_module(f"{__name__}.{module}"), own)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
