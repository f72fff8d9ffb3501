"""The GPUs that a node takes of a machine which others use, too: free ones, which nobody of ours takes then."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path

from ...model.gpu_use import GpuUse
from .. import gpu_locks
from ..gpu_look import look_in_child
from .config import AgentConfig
from .spawn import left_behind

TRIES = 8
PAUSE = 0.25  # seconds between two at most: who wants the same at the same instant may have given up by then


def taken(config: AgentConfig) -> AgentConfig:
    """A config with the devices of each rank, which are locked from now on for as long as this process lives.

    Raises:
        ValueError: so many are not free any more; says of each who has it.
    """
    path = Path(config.paths.devices)
    if path.exists() and left_behind(config):
        # Ranks that outlived another agent go on with theirs, and hold them.
        told = json.loads(path.read_text(encoding="utf-8"))
        for rank in told["devices"]:
            for device in rank.split(","):
                gpu_locks.hold(device)
        return _with(config, told["devices"], told["models"])
    of, count = config.free_gpus["of"], config.free_gpus["count"]
    for attempt in range(TRIES):
        found, amiss, raced = _take(of, count)
        if len(found) == count:
            break
        for each in found:
            gpu_locks.release(each.id)
        if not raced or attempt == TRIES - 1:
            few = f"{len(found)} of them {'is' if len(found) == 1 else 'are'} left"
            raise ValueError(
                f"{count} of its GPUs that were free a moment ago {'was' if count == 1 else 'were'} to be taken, and "
                f"{few if found else 'none is left'}: {'; '.join(amiss)}. Start again for what is free now"
            )
        time.sleep(random.uniform(0, PAUSE))
    ranks = count if config.ranks_per_node == "gpu" else config.ranks_per_node  # type: ignore[comparison-overlap]
    each_has = count // ranks
    devices = [",".join(use.id for use in found[at : at + each_has]) for at in range(0, count, each_has)]
    models = [use.model for use in found]
    path.write_text(json.dumps({"devices": devices, "models": models}), encoding="utf-8")
    return _with(config, devices, models)


def _with(config: AgentConfig, devices: Sequence[str], models: Sequence[str]) -> AgentConfig:
    return config.with_gpus(models).changed(ranks_per_node=len(devices), devices=list(devices))


def _take(of: Sequence[str], count: int) -> tuple[list[GpuUse], list[str], bool]:
    """Lock devices until there are enough that are free. Returns them; what is amiss with others, in words; and whether
    one is only locked, by who may be about to give it back."""
    left, found, amiss, raced = list(of), list[GpuUse](), list[str](), False
    while left and len(found) < count:
        tried, left = left[: count - len(found)], left[count - len(found) :]
        locked = [device for device in tried if gpu_locks.hold(device)]
        told, why = look_in_child()
        if why:
            raise ValueError(f"its GPUs cannot be taken: {why}")
        seen = {each["id"]: GpuUse.from_json(each) for each in told}
        for device in tried:
            use = seen.get(device)
            if device in locked and use is not None and not use.is_in_use:
                found.append(use)
                continue
            raced = raced or device not in locked
            gpu_locks.release(device)
            amiss.append(f"GPU {device} is gone" if use is None else str(use))
    return found, amiss, raced


def kept_by(devices: str) -> list[int]:
    """What a rank's process inherits, so that its GPUs stay locked where it outlives its agent.

    Args:
        devices: its GPUs, with commas between.

    Raises:
        OSError: another pool has one of them: no agent of ours held it for a while.
    """
    found = []
    for device in devices.split(","):
        # A rank that outlived the agent before us may hold it, and nobody answers for that then.
        if not gpu_locks.hold(device) and not gpu_locks.is_lost(device):
            raise OSError(f"its GPU {device} is taken by {gpu_locks.holder(device)}")
        found += gpu_locks.descriptors(device)
    return found
