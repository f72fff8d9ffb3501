"""Measurement of a machine's GPUs, disk and network on arrival.

What takes too long is left out: the answer says of each thing a figure, or why there is none.
"""

from __future__ import annotations

import hmac
import os
import selectors
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from skyward_core.node.bootstrap.host_inspection import unique_token

LISTEN_TIMEOUT = 15.0  # seconds for which the neighbour may come, and send
CONNECT_TIMEOUT, SEND_SECONDS = 2.0, 1.0  # seconds
# By so much a network is known that takes it in less time: its start is long over by then.
MAX_SEND_BYTES = 256 << 20  # bytes
MAX_UNAUTHENTICATED = 64  # lines at most that are open and have not said the word


def start_receiver(address: str, word: str) -> int:
    """Take what the neighbour sends, which is thrown away, for a few seconds; gives the port.

    Raises:
        OSError: nobody can listen at that address.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.create_server((address, 0), family=family)
    threading.Thread(target=_receive_benchmark, args=(server, word.encode()), daemon=True).start()
    return int(server.getsockname()[1])


def _receive_benchmark(server: socket.socket, word: bytes) -> None:
    until = time.monotonic() + LISTEN_TIMEOUT
    with server:
        line = _accept_neighbour(server, word, until)
    if line is not None:
        with line:
            try:
                line.sendall(_count_received(line, until).to_bytes(8, "big"))
            except OSError:
                return  # who sends tells of it


def _accept_neighbour(server: socket.socket, word: bytes, until: float) -> socket.socket | None:
    """The line that begins with the word, however many others are there and say nothing, or say it slowly."""
    said: dict[socket.socket, bytes] = {}
    server.setblocking(False)
    with selectors.DefaultSelector() as ready:
        ready.register(server, selectors.EVENT_READ)

        def drop(line: socket.socket) -> None:
            del said[line]
            ready.unregister(line)
            line.close()

        while (left := until - time.monotonic()) > 0:
            for line in [key.fileobj for key, _ in ready.select(left)]:
                if line is server:
                    if (come := _accept_next(server)) is not None:
                        said[come] = b""
                        ready.register(come, selectors.EVENT_READ)
                        if len(said) > MAX_UNAUTHENTICATED:
                            drop(next(iter(said)))
                elif isinstance(line, socket.socket) and line in said:
                    more = _read_available(line, len(word) - len(said[line]))
                    said[line] += more
                    if hmac.compare_digest(said[line], word):
                        del said[line]
                        _close_all(said)
                        return line
                    if not more or len(said[line]) == len(word):
                        drop(line)
    _close_all(said)
    return None


def _accept_next(server: socket.socket) -> socket.socket | None:
    try:
        line, _ = server.accept()
    except OSError:  # gone again, or there is no room for another file
        return None
    line.setblocking(False)
    return line


def _read_available(line: socket.socket, most: int) -> bytes:
    """What has come over a line; nothing where that is at its end."""
    try:
        return line.recv(most)
    except OSError:
        return b""


def _close_all(lines: Iterable[socket.socket]) -> None:
    for line in lines:
        line.close()


def _count_received(line: socket.socket, until: float) -> int:
    """How many bytes come before the other side says that it is done."""
    buffer, total = bytearray(1 << 20), 0
    while (left := until - time.monotonic()) > 0:
        line.settimeout(left)
        if not (size := line.recv_into(buffer)):
            return total
        total += size
    raise TimeoutError


def measure_send(wanted: dict[str, Any]) -> dict[str, Any]:
    """Send to a neighbour for a second, or what is enough: MB/s that it took, or why there is no figure.

    Args:
        wanted: its ``address`` and ``port``, and the ``word`` that it knows us by.
    """
    try:
        with socket.create_connection((wanted["address"], wanted["port"]), CONNECT_TIMEOUT) as line:
            line.sendall(wanted["word"].encode())
            piece, left, begun = bytes(1 << 20), MAX_SEND_BYTES, time.perf_counter()
            while left > 0 and time.perf_counter() - begun < SEND_SECONDS:
                line.sendall(piece)
                left -= len(piece)
            line.shutdown(socket.SHUT_WR)
            taken = int.from_bytes(_receive_exactly(line, 8), "big")
            seconds = time.perf_counter() - begun
    except OSError as error:
        return {"rate": 0.0, "why": str(error)}
    return {"rate": taken / 1e6 / seconds, "why": "" if taken else "it took nothing"}


def _receive_exactly(line: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (piece := line.recv(size - len(found))):
        found += piece
    return found


DISK_BYTES = 64 << 20  # bytes that are written
PIECE = 4 << 20
DRIVER, DISK_TIME, MATMUL = 8.0, 4.0, 9.0  # seconds at most for each
DRIVER_RETRY_DELAY = 0.5  # seconds before a driver is asked again

_DRIVER_QUERY = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
_NO_DEVICES = "No devices were found"  # a driver's word, with which its program fails, too

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


def measure_host(base: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    """Measure this host, all at the same time, and listen for the neighbour where an address is given.

    Args:
        base: a folder on the disk that the pool writes to.
        wanted: ``gpus`` whether it should have some, ``python`` of its ranks, ``address`` to listen at or "", and the
            ``word`` by which the neighbour is known.
    """
    port, no_port = 0, ""
    if wanted["address"]:
        try:
            port = start_receiver(wanted["address"], wanted["word"])
        except OSError as error:
            no_port = f"it cannot listen at {wanted['address']}: {error}"
    with ThreadPoolExecutor(2) as threads:
        driver = threads.submit(_list_gpus) if wanted["gpus"] else None
        matmul = threads.submit(_measure_matmul, wanted["python"]) if wanted["gpus"] else None
        disk, no_disk = _measure_disk(base)
        gpus, no_gpus = driver.result() if driver else ([], "")
        tflops, no_tflops = matmul.result() if matmul else (0.0, "")
    reasons = {"gpus": no_gpus, "matmul": no_tflops, "disk": no_disk, "port": no_port}
    return {
        "gpus": gpus, "tflops": tflops, "disk": disk, "port": port,
        "whys": {name: reason for name, reason in reasons.items() if reason}, "time": time.time(),
    }  # fmt: skip


def _list_gpus() -> tuple[list[tuple[str, float]], str]:
    """Name and MiB of each GPU, as the driver tells; and why nothing can be told. A driver that still loads refuses to
    answer, or knows of no GPU yet: it is asked again until its time is over."""
    if shutil.which("nvidia-smi") is None:
        return [], "there is no nvidia-smi"
    until = time.monotonic() + DRIVER
    while True:
        left = until - time.monotonic()
        try:
            said = subprocess.run(
                _DRIVER_QUERY, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                timeout=max(left, DRIVER_RETRY_DELAY),
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return [], f"nvidia-smi does not answer: {error}"
        if said.returncode == 0:
            return _parse_driver_output(said.stdout)
        if left <= DRIVER_RETRY_DELAY:
            break
        time.sleep(DRIVER_RETRY_DELAY)
    if _NO_DEVICES in said.stdout:
        return [], ""
    reason = (said.stdout.strip() or said.stderr.strip() or "it says nothing").splitlines()[0][:200]
    return [], f"nvidia-smi fails for {DRIVER:g} s (status {said.returncode}): {reason}"


def _parse_driver_output(listed: str) -> tuple[list[tuple[str, float]], str]:
    found = []
    for line in listed.splitlines():
        name, memory, *_ = [*line.split(", "), "", ""]
        number = memory.partition(" ")[0]
        if not number.isdecimal():  # of some the driver does not tell
            return [], f"nvidia-smi tells no memory of {name}"
        found.append((name, float(number)))
    return found, ""


def _measure_matmul(python: str) -> tuple[float, str]:
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


def _measure_disk(base: Path) -> tuple[float, str]:
    """MB/s that reach the disk; and why there is no figure."""
    path, piece, written = base / f"probe.{unique_token()}", os.urandom(PIECE), 0
    begun = time.perf_counter()
    try:
        with path.open("xb", buffering=0) as file:
            path.unlink()  # who is killed here leaves nothing
            while written < DISK_BYTES and time.perf_counter() - begun < DISK_TIME:
                written += file.write(piece)
                os.fsync(file.fileno())
        return written / 1e6 / (time.perf_counter() - begun), ""
    except OSError as error:
        return 0.0, str(error)
