"""PyTorch's process group where a plugin has made it, and code that makes it itself comes behind."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ...model.errors import UsageError
from ...runtime import used_up
from ...runtime.info import InstanceInfo


def shared_with_scripts(info: InstanceInfo, usable: Callable[[str], str]) -> Callable[[], None]:
    """From now on ``init_process_group()`` gives the group that there is, where what it is called with agrees with
    that; and the process in which ``destroy_process_group()`` ends it is not used any more.

    Args:
        info: the rank's place.
        usable: what a backend comes to on this machine.

    Returns:
        What destroys the group, where it still is there.
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
        asked = signature.bind(*args, **kwargs).arguments
        if (backend := asked.get("backend")) is not None:
            asked["backend"] = usable(backend)
        _check(c10d, made, asked, info)
        if isinstance(timeout := asked.get("timeout"), timedelta):
            c10d._set_pg_timeout(timeout, made)

    @functools.wraps(destroy)
    def destroy_process_group(group: Any = None) -> None:
        is_ours = (group is None or group is made) and dist.is_initialized()
        destroy(group)
        if is_ours:
            used_up.say("it destroyed the process group of all ranks")

    for module in (dist, c10d):
        module.init_process_group = init_process_group
        module.destroy_process_group = destroy_process_group

    def end() -> None:
        if dist.is_initialized():
            destroy()

    return end


def _check(c10d: Any, made: Any, asked: dict[str, Any], info: InstanceInfo) -> None:
    """See that a group is asked for which is the one that there is.

    Raises:
        UsageError: names both.
    """
    there = c10d._world.pg_backend_config[made]
    has = dict(pair.split(":") for pair in there.split(","))
    backend = asked.get("backend")
    wants = {} if backend is None else c10d.BackendConfig(c10d.Backend(backend)).device_backend_map
    differ = []
    if any(has.get(device) != str(name) for device, name in wants.items()):
        differ.append(f"backend={backend!r}")
    for name, own in (("world_size", info.world_size), ("rank", info.rank)):
        if asked.get(name, -1) not in (-1, own):
            differ.append(f"{name}={asked[name]!r}")
    meets_at = f"tcp://{info.head_addr}:"
    method = asked.get("init_method")
    if not (method is None or method == "env://" or str(method).startswith(meets_at)):
        differ.append(f"init_method={method!r}")
    differ += [f"{name}=..." for name in ("store", "pg_options") if asked.get(name) is not None]
    if differ:
        raise UsageError(
            f"init_process_group({', '.join(differ)}) asks for another process group than the one that the plugin "
            f"torch has made of this pool's ranks (backend {there}, world_size {info.world_size}, rank {info.rank}): "
            "leave these arguments out, give the plugin the same (backend=...), or let the function make it alone "
            "(init=False)"
        )
