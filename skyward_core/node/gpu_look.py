"""Who uses the GPUs of this machine: what the NVIDIA driver, the kernel and the locks of our pools say of each."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from typing import Any, NoReturn

from ..model.errors import PoolError
from ..runtime.devices import nvml, visible
from .gpu_locks import holder, taken, user_name

PATIENCE = 20.0  # seconds; a driver that has to wake its GPUs first takes some
LONGEST = 64  # characters of a command's name


def look() -> list[dict[str, Any]]:
    """Each GPU or slice that our user may use, as :class:`..model.gpu_use.GpuUse` has it.

    Raises:
        PoolError: the driver does not answer.
    """
    with nvml() as pynvml:
        locked = taken()
        return [
            {
                "number": number,
                "id": uuid,
                "model": model,
                **_figures(pynvml, handle),
                "processes": _processes(pynvml, handle),
                "holder": holder(uuid) if uuid in locked else "",
            }
            for number, uuid, model, handle in visible(pynvml)
        ]


def _figures(pynvml: Any, handle: Any) -> dict[str, int | None]:
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
            command = file.read(LONGEST).decode(errors="replace").rstrip("\n")
    except OSError:
        pass  # it has ended, is hidden from us, or runs in a container of which we see no processes
    return {"pid": pid, "user": user, "command": command, "memory": memory, "computes": computes}


def look_in_child(patience: float = PATIENCE) -> tuple[list[dict[str, Any]], str]:
    """The same, from a process that may hang without harm, as drivers do; and why it tells nothing, or ""."""
    readable, writable = os.pipe()
    if not (pid := os.fork()):
        _answer(writable)
    os.close(writable)
    said, until = b"", time.monotonic() + patience
    try:
        while True:
            if not select.select([readable], [], [], max(0.0, until - time.monotonic()))[0]:
                return [], f"the NVIDIA driver has not answered for {patience:g} s"
            piece = os.read(readable, 1 << 16)
            if not piece:
                break
            said += piece
        gpus, why = json.loads(said)
        return gpus, why
    except ValueError:
        return [], "who asks the NVIDIA driver has died of it"
    finally:
        os.close(readable)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, os.WNOHANG)  # one that the driver holds does not even end then


def _answer(pipe: int) -> NoReturn:
    try:
        told: tuple[list[dict[str, Any]], str] = look(), ""
    except Exception as error:  # noqa: BLE001  whatever a driver does, it is told
        told = [], str(error) if isinstance(error, PoolError) else f"{type(error).__name__}: {error}"
    data = json.dumps(told).encode()
    while data:
        data = data[os.write(pipe, data) :]
    os._exit(0)
