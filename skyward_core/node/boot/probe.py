"""What a host really is, measured in a few seconds on its own: GPUs, disk, clock; it listens for its neighbour.

What takes too long is left out: the answer says of each thing a figure, or why there is none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .host import own_word
from .neighbour import listen

DISK = 64 << 20  # bytes that are written
PIECE = 4 << 20
DRIVER, DISK_TIME, MATMUL = 8.0, 4.0, 9.0  # seconds at most for each
AGAIN = 0.5  # seconds before a driver is asked again

_ASKS_DRIVER = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
_NONE_THERE = "No devices were found"  # a driver's word, with which its program fails, too

# torch's own file says whether it was built for CUDA: to import one that was not would take seconds for nothing.
_MATMUL = """
import importlib.util, re, sys, time
spec = importlib.util.find_spec("torch")
if spec is None or not spec.submodule_search_locations:
    sys.exit("no torch there")
said = open(spec.submodule_search_locations[0] + "/version.py").read()
if not re.search(r"^cuda\\b.*=\\s*['\\"]", said, re.M):
    sys.exit("torch there is without CUDA")
import torch
least = 0.0
for index in range(torch.cuda.device_count()):
    a = torch.randn(4096, 4096, device=f"cuda:{index}", dtype=torch.float16)
    for turns in (3, 20):
        torch.cuda.synchronize(index)
        begun = time.perf_counter()
        for _ in range(turns):
            a @ a
        torch.cuda.synchronize(index)
    done = 2 * 4096**3 * turns / (time.perf_counter() - begun) / 1e12
    least = min(least or done, done)
print(least)
"""


def measure(base: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    """Measure this host, all at the same time, and listen for the neighbour where an address is given.

    Args:
        base: a folder on the disk that the pool writes to.
        wanted: ``gpus`` whether it should have some, ``python`` of its ranks, ``address`` to listen at or "", and the
            ``word`` by which the neighbour is known.
    """
    port, no_port = 0, ""
    if wanted["address"]:
        try:
            port = listen(wanted["address"], wanted["word"])
        except OSError as error:
            no_port = f"it cannot listen at {wanted['address']}: {error}"
    with ThreadPoolExecutor(2) as threads:
        driver = threads.submit(_gpus) if wanted["gpus"] else None
        matmul = threads.submit(_matmul, wanted["python"]) if wanted["gpus"] else None
        disk, no_disk = _disk(base)
        gpus, no_gpus = driver.result() if driver else ([], "")
        tflops, no_tflops = matmul.result() if matmul else (0.0, "")
    whys = {"gpus": no_gpus, "matmul": no_tflops, "disk": no_disk, "port": no_port}
    return {
        "gpus": gpus, "tflops": tflops, "disk": disk, "port": port,
        "whys": {name: why for name, why in whys.items() if why}, "time": time.time(),
    }  # fmt: skip


def _gpus() -> tuple[list[tuple[str, float]], str]:
    """Name and MiB of each GPU, as the driver tells; and why nothing can be told. A driver that still loads refuses to
    answer, or knows of no GPU yet: it is asked again until its time is over."""
    if shutil.which("nvidia-smi") is None:
        return [], "there is no nvidia-smi"
    until = time.monotonic() + DRIVER
    while True:
        left = until - time.monotonic()
        try:
            said = subprocess.run(
                _ASKS_DRIVER, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                timeout=max(left, AGAIN),
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return [], f"nvidia-smi does not answer: {error}"
        if said.returncode == 0:
            return _told_by_driver(said.stdout)
        if left <= AGAIN:
            break
        time.sleep(AGAIN)
    if _NONE_THERE in said.stdout:
        return [], ""
    why = (said.stdout.strip() or said.stderr.strip() or "it says nothing").splitlines()[0][:200]
    return [], f"nvidia-smi fails for {DRIVER:g} s (status {said.returncode}): {why}"


def _told_by_driver(listed: str) -> tuple[list[tuple[str, float]], str]:
    found = []
    for line in listed.splitlines():
        name, memory, *_ = [*line.split(", "), "", ""]
        number = memory.partition(" ")[0]
        if not number.isdecimal():  # of some the driver does not tell
            return [], f"nvidia-smi tells no memory of {name}"
        found.append((name, float(number)))
    return found, ""


def _matmul(python: str) -> tuple[float, str]:
    """The least TFLOP/s of its GPUs, by the torch that ranks have; and why there is no figure."""
    try:
        said = subprocess.run(
            [python, "-c", _MATMUL], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=MATMUL,
        )  # fmt: skip
        return float(said.stdout.split()[-1]), ""
    except subprocess.TimeoutExpired:
        return 0.0, f"torch took more than {MATMUL:g} s"
    except OSError as error:
        return 0.0, str(error)
    except (ValueError, IndexError):
        return 0.0, (said.stderr.strip().splitlines() or ["torch said nothing"])[-1][:200]


def _disk(base: Path) -> tuple[float, str]:
    """MB/s that reach the disk; and why there is no figure."""
    path, piece, written = base / f"probe.{own_word()}", os.urandom(PIECE), 0
    begun = time.perf_counter()
    try:
        with path.open("xb", buffering=0) as file:
            path.unlink()  # who is killed here leaves nothing
            while written < DISK and time.perf_counter() - begun < DISK_TIME:
                written += file.write(piece)
                os.fsync(file.fileno())
        return written / 1e6 / (time.perf_counter() - begun), ""
    except OSError as error:
        return 0.0, str(error)
