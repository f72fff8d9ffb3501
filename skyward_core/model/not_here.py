"""Names of older generations that are not here, and why: what an error says of one (``docs/migration.md`` has all)."""

from __future__ import annotations

import sys
from typing import NoReturn

_WHY = {
    "observability": "sky.log(loss=...) tells numbers of a rank, compute.metrics() has all",
    "AllocationStrategy SelectionStrategy WorkerExecutor NodeSpec SpecKwargs": "it is a type of arguments, which are "
    "texts and numbers where they stand",
    "Provider ProviderName": "what machines come from is sky.Local, sky.SSH, sky.AWS or sky.Slurm, or a name",
    "Event EventCallback Metric Log Error Request Fact RequestId ClusterId InstanceId NodeId NodeInstance "
    "ClusterRequested InstanceRequested ShutdownCompleted ShutdownRequested ClusterProvisioned "
    "InstanceProvisioned InstanceBootstrapped InstancePreempted InstanceReplaced InstanceDestroyed ClusterReady "
    "ClusterDestroyed TaskStarted TaskCompleted ComputeAbandoned ComputeAdopted ComputeBound ComputeCreated "
    "ComputeDegraded ComputeDeleted ComputeDeleting ComputeDeletionFailed ComputeProvisioning ComputeReady "
    "ComputeState ComputeView ConsoleEvent CostEvent EmittedEvent GenerationApplied GenerationCreated "
    "LeaseClaimed LeaseReleased MetricEvent NodeEvent NodeState NodeView PhaseEvent PhaseView ProgressEvent "
    "StraysTerminated TaskEvent TaskState TaskView": "no "
    "generation's events are another's: sky.attach(name).view shows what a pool is at, and its record has all",
    "Volume Storage storage": "buckets are not mounted: fetch what a rank needs in the function, and "
    "sky.Image(outputs=[...]) brings back what it writes",
    "registry DistributedRegistry Consistency": "what ranks share has one server, and so one order for "
    "all: sky.dict, sky.counter and their like",
    "Retry Lost": "no call is made again by itself: catch sky.RunError, and send it again",
    "Port": "the command `forward POOL PORT` brings a port of a node here",
    "Session Client": "a pool is this process's own, and sky.attach(name) comes to another's",
    "App main": "the command `run SCRIPT -a name=value` calls a function by its signature",
    "offers OfferRepository Offer InstanceType": "the command `offers` lists what can be rented, "
    "and compute.plan() what would be",
    "TaskIndeterminateError": "a call that failed, or was lost with its node, raises sky.RunError",
}  # fmt: skip
_OF_PLUGINS = {
    "cuml Cuml": 'sky.Image(pip=["cuml-cu12"]) installs it, and cuml.accel.install() in the function sets it up',
    "mps Mps": "ranks that share a GPU share it as processes do",
}


def why_not(name: str, *, plugin: bool = False) -> str:
    """Why a name is not here, as the end of a sentence; "" for one that no generation has.

    Args:
        name: what was asked for.
        plugin: whether of the plugins.
    """
    for names, why in (_OF_PLUGINS if plugin else _WHY).items():
        if name in names.split():
            return f": older releases have it, and this library has not, because {why}"
    return ""


def refuse(module: str, name: str, *, plugin: bool = False) -> NoReturn:
    """Say that a module of ours has no such name, and why, where the script asks for it.

    Args:
        module: the module's name.
        name: what was asked for.
        plugin: whether of the plugins.

    Raises:
        AttributeError: always; but for ``from module import name`` of a name that has a reason.
        ImportError: in that case: of an AttributeError Python would tell nothing but "cannot import name".
    """
    why = why_not(name, plugin=plugin)
    if why and sys._getframe(2).f_code.co_name == "_handle_fromlist":  # of importlib, which asks first
        raise ImportError(f"cannot import {name!r} from {module!r}{why}", name=module)
    raise AttributeError(f"module {module!r} has no attribute {name!r}{why}")
