"""Locks on the GPUs of a shared machine, and their holders.

A lock is a name in the kernel's abstract namespace of Unix sockets. Only one process on the machine can hold a name,
and the kernel reports the user of this process. In contrast to lock files, names cannot be planted, replaced or left
over. If another user binds the name of a GPU, the GPU counts as taken by that user. Containers without a common network
namespace do not share names; between them, only the driver's process list shows GPUs in use.
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import random
import select
import signal
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from skyward_core.model.errors import PoolError
from skyward_core.model.machines_checks_and_gpu_use import GpuUse
from skyward_core.node.agent.config import AgentConfig
from skyward_core.node.agent.worker_processes import find_orphaned_workers
from skyward_core.runtime.visible_nvidia_gpus import iterate_visible_gpus, nvml

LOCK_PREFIX = "skyward-gpu-"
ANSWER_TIMEOUT = 0.3  # seconds for the process that holds a GPU's lock to send its pool's name
MAX_POOL_NAME_BYTES = 100
_CREDENTIALS = struct.Struct("3i")  # SO_PEERCRED of Linux: pid, user id, group id

_locks: dict[str, socket.socket] = {}  # GPU -> socket bound to the GPU's lock name until this process exits


def acquire_gpu(device: str) -> bool:
    """Lock a GPU unless another process holds it. Return whether this process holds it."""
    if device in _locks:
        return True
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock.bind(f"\0{LOCK_PREFIX}{device}")
        lock.listen(64)
        lock.setblocking(False)
    except OSError:
        lock.close()
        return False
    _locks[device] = lock
    return True


def release_gpu(device: str) -> None:
    """Release this process's lock on a GPU."""
    if (lock := _locks.pop(device, None)) is not None:
        lock.close()


def serve_pool_name(loop: asyncio.AbstractEventLoop, pool: str) -> None:
    """Send the pool's name to each process of this user that connects to a GPU lock of this process."""
    for lock in _locks.values():
        # Call listen() here: the kernel names the latest caller as the holder, which must be the agent, not its parent
        # process.
        lock.listen(64)
        loop.add_reader(lock.fileno(), _send_pool_name, lock, pool.encode()[:MAX_POOL_NAME_BYTES])


def _send_pool_name(lock: socket.socket, pool: bytes) -> None:
    with suppress(OSError), lock.accept()[0] as peer:
        peer.setblocking(False)
        if _peer_credentials(peer)[1] == os.getuid():
            peer.send(pool)


def locked_by_others() -> set[str]:
    """Return the GPUs that other processes of this machine have locked."""
    marker = f"@{LOCK_PREFIX}"
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
            lines = file.read().split("\n")
    except OSError:  # /proc/net/unix exists only on Linux.
        return set()
    return {line.partition(marker)[2] for line in lines if marker in line} - _locks.keys()


def describe_holder(device: str) -> str:
    """Describe the process that holds a GPU's lock. The text contains its pool's name, which is not verified."""
    if (holder := _query_holder(device)) is None:
        return "an unknown process"
    pid, user, pool = holder
    return f"pool {pool} of {user_name(user)}" if pool else f"a pool of {user_name(user)} (process {pid})"


def has_lost_agent(device: str) -> bool:
    """Check whether ranks of this user hold a GPU although their agent no longer exists."""
    holder = _query_holder(device)
    return holder is not None and holder[1] == os.getuid() and not holder[2]


def _query_holder(device: str) -> tuple[int, int, str] | None:
    """Return pid, user and pool of the process that holds a GPU's lock; None if unknown. Another user's pool is ""."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(ANSWER_TIMEOUT)
        try:
            peer.connect(f"\0{LOCK_PREFIX}{device}")
            pid, user, _ = _peer_credentials(peer)
        except OSError:  # The process that holds the GPU does not listen or does not answer.
            return None
        pool = b""
        if user == os.getuid():
            with suppress(OSError):
                pool = peer.recv(MAX_POOL_NAME_BYTES)
    return pid, user, pool.decode(errors="replace")


def user_name(number: int) -> str:
    """Return the name of a user; if the user has no name, a text with the user's number."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _peer_credentials(peer: socket.socket) -> tuple[int, int, int]:
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, group = _CREDENTIALS.unpack(credentials)
    return pid, user, group


DRIVER_TIMEOUT = 20.0  # seconds for the driver to answer, because waking sleeping GPUs takes long
MAX_COMMAND_BYTES = 64


def read_gpu_usage() -> list[dict[str, Any]]:
    """Return the usage of each GPU or slice that this user may use, in the format of ``machines.GpuUse``.

    Raises:
        PoolError: If the driver does not answer.
    """
    with nvml() as pynvml:
        locked = locked_by_others()
        return [
            {
                "number": number,
                "id": uuid,
                "model": model,
                **_read_usage(pynvml, handle),
                "processes": _processes(pynvml, handle),
                "holder": describe_holder(uuid) if uuid in locked else "",
            }
            for number, uuid, model, handle in iterate_visible_gpus(pynvml)
        ]


def _read_usage(pynvml: Any, handle: Any) -> dict[str, int | None]:
    used = total = util = None
    # Prefer version 2 of NVML's query: its used memory excludes hundreds of MB that the driver reserves.
    for version in (getattr(pynvml, "nvmlMemory_v2", None), None):
        with suppress(pynvml.NVMLError):
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version)
            used, total = int(memory.used), int(memory.total)
            break
    try:
        util = int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except pynvml.NVMLError:  # The driver reports no utilization for MIG slices.
        util = None
    return {"used": used, "total": total, "util": util}


def _processes(pynvml: Any, handle: Any) -> list[dict[str, Any]]:
    """Return the processes that use a GPU: compute processes first, then graphics processes."""
    found: dict[int, dict[str, Any]] = {}
    for kind, computes in (("Compute", True), ("Graphics", False)):
        try:
            listed = getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses")(handle)
        except pynvml.NVMLError:
            continue
        for each in listed:
            memory = None if each.usedGpuMemory is None else int(each.usedGpuMemory)
            found.setdefault(each.pid, _process(int(each.pid), memory, computes))
    return list(found.values())


def _process(pid: int, memory: int | None, computes: bool) -> dict[str, Any]:
    user = command = ""
    try:
        user = user_name(os.stat(f"/proc/{pid}").st_uid)
        with open(f"/proc/{pid}/comm", "rb") as file:
            # Read no arguments of the command, because they may contain secrets.
            command = file.read(MAX_COMMAND_BYTES).decode(errors="replace").rstrip("\n")
    except OSError:
        pass  # The process has ended, is hidden from this user, or runs in another container.
    return {"pid": pid, "user": user, "command": command, "memory": memory, "computes": computes}


def read_gpu_usage_in_child() -> tuple[list[dict[str, Any]], str]:
    """Read the GPU usage in a child process, because drivers can hang. Return it, and the reason if it is unknown."""
    readable, writable = os.pipe()
    if not (pid := os.fork()):
        _write_usage(writable)
    os.close(writable)
    output, deadline = b"", time.monotonic() + DRIVER_TIMEOUT
    try:
        while True:
            if not select.select([readable], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return [], f"the NVIDIA driver has not responded for {DRIVER_TIMEOUT:g} s"
            chunk = os.read(readable, 1 << 16)
            if not chunk:
                break
            output += chunk
        gpus, reason = json.loads(output)
        return gpus, reason
    except ValueError:
        return [], "the process that queries the NVIDIA driver crashed"
    finally:
        os.close(readable)
        os.kill(pid, signal.SIGKILL)
        # Do not wait (WNOHANG), because a process that hangs in the driver cannot be killed.
        os.waitpid(pid, os.WNOHANG)


def _write_usage(pipe: int) -> NoReturn:
    try:
        result: tuple[list[dict[str, Any]], str] = read_gpu_usage(), ""
    except Exception as error:  # noqa: BLE001  # any error of a driver is reported
        result = [], str(error) if isinstance(error, PoolError) else f"{type(error).__name__}: {error}"
    data = json.dumps(result).encode()
    while data:
        data = data[os.write(pipe, data) :]
    os._exit(0)


MAX_TRIES = 8
# maximum seconds between attempts to lock GPUs; a competing process may have released its locks by then
MAX_RETRY_DELAY = 0.25


def lock_gpus(config: AgentConfig) -> AgentConfig:
    """Lock the requested number of free GPUs for the lifetime of this process, and assign them to ranks.

    Raises:
        ValueError: If too few GPUs are free. The message names the holders of the occupied GPUs.
    """
    path = Path(config.paths.devices)
    if path.exists() and find_orphaned_workers(config):
        # Ranks that outlived an earlier agent hold their GPUs.
        saved = json.loads(path.read_text(encoding="utf-8"))
        for rank in saved["devices"]:
            for device in rank.split(","):
                acquire_gpu(device)
        return _with_devices(config, saved["devices"], saved["models"])
    of, count = config.free_gpus["of"], config.free_gpus["count"]
    for attempt in range(MAX_TRIES):
        found, problems, raced = _lock_free_gpus(of, count)
        if len(found) == count:
            break
        for each in found:
            release_gpu(each.id)
        if not raced or attempt == MAX_TRIES - 1:
            free = f"only {len(found)} free" if found else "none is free"
            raise ValueError(
                f"cannot lock {count} GPUs of those that were free a moment ago: {free} ({'; '.join(problems)}). "
                "Start the pool again to use GPUs that are free now."
            )
        time.sleep(random.uniform(0, MAX_RETRY_DELAY))
    ranks = count if config.ranks_per_node == "gpu" else config.ranks_per_node  # type: ignore[comparison-overlap]
    per_rank = count // ranks
    devices = [",".join(use.id for use in found[at : at + per_rank]) for at in range(0, count, per_rank)]
    models = [use.model for use in found]
    path.write_text(json.dumps({"devices": devices, "models": models}), encoding="utf-8")
    return _with_devices(config, devices, models)


def _with_devices(config: AgentConfig, devices: Sequence[str], models: Sequence[str]) -> AgentConfig:
    return config.with_gpus(models).replace(ranks_per_node=len(devices), devices=list(devices))


def _lock_free_gpus(of: Sequence[str], count: int) -> tuple[list[GpuUse], list[str], bool]:
    """Lock devices until ``count`` free ones are found.

    Returns:
        The locked devices, the problems of the rejected devices, and whether a rejected device was locked by another
        process, which may be about to release it.
    """
    remaining, found, problems, raced = list(of), list[GpuUse](), list[str](), False
    while remaining and len(found) < count:
        tried, remaining = remaining[: count - len(found)], remaining[count - len(found) :]
        locked = [device for device in tried if acquire_gpu(device)]
        usage, reason = read_gpu_usage_in_child()
        if reason:
            raise ValueError(f"cannot lock GPUs: {reason}")
        usage_of = {each["id"]: GpuUse.from_json(each) for each in usage}
        for device in tried:
            use = usage_of.get(device)
            if device in locked and use is not None and not use.is_in_use:
                found.append(use)
                continue
            raced = raced or device not in locked
            release_gpu(device)
            problems.append(f"GPU {device} was not found" if use is None else str(use))
    return found, problems, raced


def inherited_lock_fds(devices: str) -> list[int]:
    """Return descriptors that keep a rank's GPUs locked if the rank outlives its agent.

    Args:
        devices: The rank's GPUs, separated by commas.

    Raises:
        OSError: If another pool has locked a GPU, which is possible while the node had no agent.
    """
    found = []
    for device in devices.split(","):
        # The lock may be held by a rank that outlived the previous agent. Such a rank does not answer with a pool name.
        if not acquire_gpu(device) and not has_lost_agent(device):
            raise OSError(f"GPU {device} is taken by {describe_holder(device)}")
        if device in _locks:
            found.append(_locks[device].fileno())
    return found
