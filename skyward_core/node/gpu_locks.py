"""Locks on GPUs of a shared machine, and who uses them.

It is a name in the kernel's abstract space of Unix sockets. One process can have a name, whoever it is; there is no
file that somebody could plant, replace, leave behind, or have in a private /tmp; and of who has it the kernel itself
tells the user. A stranger can take a name, too: then the GPU counts as taken, by them. Who shares GPUs and no network
namespace (containers, mostly) shares no names either: there only the driver's list of processes tells.
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
from skyward_core.model.machines import GpuUse
from skyward_core.node.agent.config import AgentConfig
from skyward_core.node.agent.worker_processes import find_orphaned_workers
from skyward_core.runtime.visible_gpus import iterate_visible_gpus, nvml

LOCK_PREFIX = "skyward-gpu-"
ANSWER_TIMEOUT = 0.3  # seconds in which a holder says which pool it is of
MAX_POOL_NAME_BYTES = 100  # bytes of that
_CREDENTIALS = struct.Struct("3i")  # pid, user, group

_locks: dict[str, socket.socket] = {}  # device -> its name, held for this process's whole life


def acquire_gpu(device: str) -> bool:
    """Take a device, unless somebody has; taken ones of our own stay so."""
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
    """Give one back."""
    if (lock := _locks.pop(device, None)) is not None:
        lock.close()


def lock_descriptors(device: str) -> list[int]:
    """What a process inherits that is to hold a device for as long as it lives, too."""
    return [_locks[device].fileno()] if device in _locks else []


def serve_pool_name(loop: asyncio.AbstractEventLoop, pool: str) -> None:
    """From now on tell our own user who asks which pool has the devices; others are told the user, by the kernel."""
    for lock in _locks.values():
        lock.listen(64)  # the kernel names who said this last: the agent, not who started it
        loop.add_reader(lock.fileno(), _send_pool_name, lock, pool.encode()[:MAX_POOL_NAME_BYTES])


def _send_pool_name(lock: socket.socket, pool: bytes) -> None:
    with suppress(OSError), lock.accept()[0] as asks:
        asks.setblocking(False)
        if _peer_credentials(asks)[1] == os.getuid():
            asks.send(pool)


def locked_by_others() -> set[str]:
    """Devices that somebody else on this machine has taken."""
    marker = f"@{LOCK_PREFIX}"
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
            lines = file.read().split("\n")
    except OSError:  # no Linux
        return set()
    return {line.partition(marker)[2] for line in lines if marker in line} - _locks.keys()


def describe_holder(device: str) -> str:
    """Who has taken one, in words; the name of a pool in them is what its holder says."""
    if (asked := _query_holder(device)) is None:
        return "somebody who does not say who"
    pid, user, said = asked
    return f"pool {said} of {user_name(user)}" if said else f"a pool of {user_name(user)} (process {pid})"


def has_lost_agent(device: str) -> bool:
    """Whether of our own user's processes those have one whose agent is no more."""
    asked = _query_holder(device)
    return asked is not None and asked[1] == os.getuid() and not asked[2]


def _query_holder(device: str) -> tuple[int, int, str] | None:
    """The process that took one, its user, and of our own user's the pool; None where nobody says."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asks:
        asks.settimeout(ANSWER_TIMEOUT)
        try:
            asks.connect(f"\0{LOCK_PREFIX}{device}")
            pid, user, _ = _peer_credentials(asks)
        except OSError:  # it does not listen, or answers nobody
            return None
        said = b""
        if user == os.getuid():
            with suppress(OSError):
                said = asks.recv(MAX_POOL_NAME_BYTES)
    return pid, user, said.decode(errors="replace")


def user_name(number: int) -> str:
    """A user's name, or the number of one who has none here."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _peer_credentials(asks: socket.socket) -> tuple[int, int, int]:
    told = asks.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, group = _CREDENTIALS.unpack(told)
    return pid, user, group


DRIVER_TIMEOUT = 20.0  # seconds; a driver that has to wake its GPUs first takes some
LONGEST_COMMAND = 64  # characters of a command's name


def read_gpu_usage() -> list[dict[str, Any]]:
    """Each GPU or slice that our user may use, as ``machines.GpuUse`` has it.

    Raises:
        PoolError: the driver does not answer.
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
    # The second version tells apart what the driver keeps for itself: hundreds of MB, of which nobody has any use.
    for version in (getattr(pynvml, "nvmlMemory_v2", None), None):
        try:
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version)
            used, total = int(memory.used), int(memory.total)
            break
        except pynvml.NVMLError:
            continue
    try:
        util = int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except pynvml.NVMLError:  # slices have none
        util = None
    return {"used": used, "total": total, "util": util}


def _processes(pynvml: Any, handle: Any) -> list[dict[str, Any]]:
    """Those that compute, then those that only draw."""
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
        with open(f"/proc/{pid}/comm", "rb") as file:  # its arguments may hold secrets
            command = file.read(LONGEST_COMMAND).decode(errors="replace").rstrip("\n")
    except OSError:
        pass  # it has ended, is hidden from us, or runs in a container of which we see no processes
    return {"pid": pid, "user": user, "command": command, "memory": memory, "computes": computes}


def read_gpu_usage_in_child() -> tuple[list[dict[str, Any]], str]:
    """The same, from a process that may hang without harm, as drivers do; and why it tells nothing, or ""."""
    readable, writable = os.pipe()
    if not (pid := os.fork()):
        _write_usage(writable)
    os.close(writable)
    said, until = b"", time.monotonic() + DRIVER_TIMEOUT
    try:
        while True:
            if not select.select([readable], [], [], max(0.0, until - time.monotonic()))[0]:
                return [], f"the NVIDIA driver has not answered for {DRIVER_TIMEOUT:g} s"
            piece = os.read(readable, 1 << 16)
            if not piece:
                break
            said += piece
        gpus, reason = json.loads(said)
        return gpus, reason
    except ValueError:
        return [], "who asks the NVIDIA driver has died of it"
    finally:
        os.close(readable)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, os.WNOHANG)  # one that the driver holds does not even end then


def _write_usage(pipe: int) -> NoReturn:
    try:
        told: tuple[list[dict[str, Any]], str] = read_gpu_usage(), ""
    except Exception as error:  # noqa: BLE001  whatever a driver does, it is told
        told = [], str(error) if isinstance(error, PoolError) else f"{type(error).__name__}: {error}"
    data = json.dumps(told).encode()
    while data:
        data = data[os.write(pipe, data) :]
    os._exit(0)


MAX_TRIES = 8
MAX_RETRY_DELAY = 0.25  # seconds between two at most: who wants the same at the same instant may have given up by then


def lock_gpus(config: AgentConfig) -> AgentConfig:
    """A config with the devices of each rank, which are locked from now on for as long as this process lives.

    Raises:
        ValueError: so many are not free any more; says of each who has it.
    """
    path = Path(config.paths.devices)
    if path.exists() and find_orphaned_workers(config):
        # Ranks that outlived another agent go on with theirs, and hold them.
        told = json.loads(path.read_text(encoding="utf-8"))
        for rank in told["devices"]:
            for device in rank.split(","):
                acquire_gpu(device)
        return _with_devices(config, told["devices"], told["models"])
    of, count = config.free_gpus["of"], config.free_gpus["count"]
    for attempt in range(MAX_TRIES):
        found, problems, raced = _lock_free_gpus(of, count)
        if len(found) == count:
            break
        for each in found:
            release_gpu(each.id)
        if not raced or attempt == MAX_TRIES - 1:
            few = f"{len(found)} of them {'is' if len(found) == 1 else 'are'} left"
            raise ValueError(
                f"{count} of its GPUs that were free a moment ago {'was' if count == 1 else 'were'} to be taken, and "
                f"{few if found else 'none is left'}: {'; '.join(problems)}. Start again for what is free now"
            )
        time.sleep(random.uniform(0, MAX_RETRY_DELAY))
    ranks = count if config.ranks_per_node == "gpu" else config.ranks_per_node  # type: ignore[comparison-overlap]
    each_has = count // ranks
    devices = [",".join(use.id for use in found[at : at + each_has]) for at in range(0, count, each_has)]
    models = [use.model for use in found]
    path.write_text(json.dumps({"devices": devices, "models": models}), encoding="utf-8")
    return _with_devices(config, devices, models)


def _with_devices(config: AgentConfig, devices: Sequence[str], models: Sequence[str]) -> AgentConfig:
    return config.with_gpus(models).replace(ranks_per_node=len(devices), devices=list(devices))


def _lock_free_gpus(of: Sequence[str], count: int) -> tuple[list[GpuUse], list[str], bool]:
    """Lock devices until there are enough that are free. Returns them; what is amiss with others, in words; and whether
    one is only locked, by who may be about to give it back."""
    left, found, problems, raced = list(of), list[GpuUse](), list[str](), False
    while left and len(found) < count:
        tried, left = left[: count - len(found)], left[count - len(found) :]
        locked = [device for device in tried if acquire_gpu(device)]
        told, reason = read_gpu_usage_in_child()
        if reason:
            raise ValueError(f"its GPUs cannot be taken: {reason}")
        seen = {each["id"]: GpuUse.from_json(each) for each in told}
        for device in tried:
            use = seen.get(device)
            if device in locked and use is not None and not use.is_in_use:
                found.append(use)
                continue
            raced = raced or device not in locked
            release_gpu(device)
            problems.append(f"GPU {device} is gone" if use is None else str(use))
    return found, problems, raced


def inherited_lock_fds(devices: str) -> list[int]:
    """What a rank's process inherits, so that its GPUs stay locked where it outlives its agent.

    Args:
        devices: its GPUs, with commas between.

    Raises:
        OSError: another pool has one of them: no agent of ours held it for a while.
    """
    found = []
    for device in devices.split(","):
        # A rank that outlived the agent before us may hold it, and nobody answers for that then.
        if not acquire_gpu(device) and not has_lost_agent(device):
            raise OSError(f"its GPU {device} is taken by {describe_holder(device)}")
        found += lock_descriptors(device)
    return found
