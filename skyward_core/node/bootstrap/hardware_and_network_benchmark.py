"""Benchmark of a new machine's GPUs, disk and network.

Each measurement has a time limit. The result contains either the measured value or the reason why there is none.
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

LISTEN_TIMEOUT = 15.0  # seconds for the neighbouring node to connect and send
CONNECT_TIMEOUT, SEND_SECONDS = 2.0, 1.0  # seconds to connect to the neighbouring node, and to send data to it
# Maximum bytes sent. A network that transfers this amount in less than SEND_SECONDS has passed TCP's slow start.
MAX_SEND_BYTES = 256 << 20
MAX_UNAUTHENTICATED = 64  # maximum number of connections that have not sent the benchmark's secret token


def start_receiver(address: str, token: str) -> int:
    """Receive and discard the data of a neighbouring node for a few seconds. Return the port to which it must send.

    Args:
        address: Address to listen at.
        token: Token that the neighbour sends first.

    Raises:
        OSError: If the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.create_server((address, 0), family=family)
    threading.Thread(target=_receive_benchmark, args=(server, token.encode()), daemon=True).start()
    return int(server.getsockname()[1])


def _receive_benchmark(server: socket.socket, token: bytes) -> None:
    until = time.monotonic() + LISTEN_TIMEOUT
    with server:
        connection = _accept_neighbour(server, token, until)
    if connection is not None:
        with connection:
            try:
                connection.sendall(_count_received(connection, until).to_bytes(8, "big"))
            except OSError:
                return  # The sending node reports the broken connection.


def _accept_neighbour(server: socket.socket, token: bytes, until: float) -> socket.socket | None:
    """Return the first connection that sends the token. Other connections may send nothing or send slowly."""
    received: dict[socket.socket, bytes] = {}
    server.setblocking(False)
    with selectors.DefaultSelector() as ready:
        ready.register(server, selectors.EVENT_READ)

        def drop(connection: socket.socket) -> None:
            del received[connection]
            ready.unregister(connection)
            connection.close()

        while (remaining := until - time.monotonic()) > 0:
            for connection in [key.fileobj for key, _ in ready.select(remaining)]:
                if connection is server:
                    if (accepted := _accept_next(server)) is not None:
                        received[accepted] = b""
                        ready.register(accepted, selectors.EVENT_READ)
                        if len(received) > MAX_UNAUTHENTICATED:
                            drop(next(iter(received)))
                elif isinstance(connection, socket.socket) and connection in received:
                    data = _read_available(connection, len(token) - len(received[connection]))
                    received[connection] += data
                    if hmac.compare_digest(received[connection], token):
                        del received[connection]
                        _close_all(received)
                        return connection
                    if not data or len(received[connection]) == len(token):
                        drop(connection)
    _close_all(received)
    return None


def _accept_next(server: socket.socket) -> socket.socket | None:
    try:
        connection, _ = server.accept()
    except OSError:  # The peer disconnected before it was accepted, or this process has no free descriptor.
        return None
    connection.setblocking(False)
    return connection


def _read_available(connection: socket.socket, most: int) -> bytes:
    """Return the bytes that a connection has received so far; empty at the end of the stream."""
    try:
        return connection.recv(most)
    except OSError:
        return b""


def _close_all(connections: Iterable[socket.socket]) -> None:
    for connection in connections:
        connection.close()


def _count_received(connection: socket.socket, until: float) -> int:
    """Return the number of bytes that a connection receives until the sender signals the end."""
    buffer, total = bytearray(1 << 20), 0
    while (remaining := until - time.monotonic()) > 0:
        connection.settimeout(remaining)
        if not (size := connection.recv_into(buffer)):
            return total
        total += size
    raise TimeoutError


def measure_send(target: dict[str, Any]) -> dict[str, Any]:
    """Send data to a neighbouring node for one second or up to ``MAX_SEND_BYTES``.

    Args:
        target: ``address`` and ``port`` of the neighbour, and the token (``word``).

    Returns:
        ``rate`` in MB/s as received, and ``why``, the reason if there is no rate, or "".
    """
    try:
        with socket.create_connection((target["address"], target["port"]), CONNECT_TIMEOUT) as connection:
            connection.sendall(target["word"].encode())
            chunk, remaining, begun = bytes(1 << 20), MAX_SEND_BYTES, time.perf_counter()
            while remaining > 0 and time.perf_counter() - begun < SEND_SECONDS:
                connection.sendall(chunk)
                remaining -= len(chunk)
            connection.shutdown(socket.SHUT_WR)
            received = int.from_bytes(_receive_exactly(connection, 8), "big")
            seconds = time.perf_counter() - begun
    except OSError as error:
        return {"rate": 0.0, "why": str(error)}
    return {"rate": received / 1e6 / seconds, "why": "" if received else "nothing was received"}


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (chunk := connection.recv(size - len(found))):
        found += chunk
    return found


DISK_BYTES = 64 << 20  # bytes that the disk benchmark writes
PIECE = 4 << 20
# time limits in seconds of the driver query, the disk benchmark and the matrix multiplication
DRIVER, DISK_TIME, MATMUL = 8.0, 4.0, 9.0
DRIVER_RETRY_DELAY = 0.5  # seconds between two queries of the GPU driver

_DRIVER_QUERY = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
_NO_DEVICES = "No devices were found"  # Without GPUs, nvidia-smi prints this text and exits with an error.

# The version file states whether torch was built for CUDA. Importing a build without CUDA would waste seconds.
_MATMUL = """
import importlib.util, re, sys, time
spec = importlib.util.find_spec("torch")
if spec is None or not spec.submodule_search_locations:
    sys.exit("torch is not installed")
text = open(spec.submodule_search_locations[0] + "/version.py").read()
if not re.search(r"^cuda\\b.*=\\s*['\\"]", text, re.M):
    sys.exit("torch was built without CUDA")
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


def measure_host(base: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Run all measurements of this host concurrently. If an address is given, receive a neighbouring node's data.

    Args:
        base: Folder on the disk that the pool writes to.
        request: ``gpus`` (whether to measure GPUs), ``python`` of the ranks, ``address`` to listen at or "", and the
            token ``word`` that the neighbour sends.
    """
    port, no_port = 0, ""
    if request["address"]:
        try:
            port = start_receiver(request["address"], request["word"])
        except OSError as error:
            no_port = f"cannot listen at {request['address']}: {error}"
    with ThreadPoolExecutor(2) as threads:
        driver = threads.submit(_list_gpus) if request["gpus"] else None
        matmul = threads.submit(_measure_matmul, request["python"]) if request["gpus"] else None
        disk, no_disk = _measure_disk(base)
        gpus, no_gpus = driver.result() if driver else ([], "")
        tflops, no_tflops = matmul.result() if matmul else (0.0, "")
    reasons = {"gpus": no_gpus, "matmul": no_tflops, "disk": no_disk, "port": no_port}
    return {
        "gpus": gpus, "tflops": tflops, "disk": disk, "port": port,
        "whys": {name: reason for name, reason in reasons.items() if reason}, "time": time.time(),
    }  # fmt: skip


def _list_gpus() -> tuple[list[tuple[str, float]], str]:
    """Return the name and the memory in MiB of each GPU, and the reason if there is no result.

    Retries until the time limit, because a driver that is still loading fails or lists no GPUs.
    """
    if shutil.which("nvidia-smi") is None:
        return [], "nvidia-smi is not installed"
    until = time.monotonic() + DRIVER
    while True:
        remaining = until - time.monotonic()
        try:
            result = subprocess.run(
                _DRIVER_QUERY, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                timeout=max(remaining, DRIVER_RETRY_DELAY),
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return [], f"nvidia-smi failed: {error}"
        if result.returncode == 0:
            return _parse_driver_output(result.stdout)
        if remaining <= DRIVER_RETRY_DELAY:
            break
        time.sleep(DRIVER_RETRY_DELAY)
    if _NO_DEVICES in result.stdout:
        return [], ""
    reason = (result.stdout.strip() or result.stderr.strip() or "no output").splitlines()[0][:200]
    return [], f"nvidia-smi failed for {DRIVER:g} s (status {result.returncode}): {reason}"


def _parse_driver_output(listed: str) -> tuple[list[tuple[str, float]], str]:
    found = []
    for line in listed.splitlines():
        name, memory, *_ = [*line.split(", "), "", ""]
        number = memory.partition(" ")[0]
        if not number.isdecimal():  # The driver does not report the memory size of all GPU models.
            return [], f"nvidia-smi reports no memory size of {name}"
        found.append((name, float(number)))
    return found, ""


def _measure_matmul(python: str) -> tuple[float, str]:
    """Return the TFLOP/s of the slowest GPU, measured with the ranks' torch, and the reason if there is no result."""
    try:
        result = subprocess.run(
            [python, "-c", _MATMUL], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=MATMUL,
        )  # fmt: skip
        return float(result.stdout.split()[-1]), ""
    except subprocess.TimeoutExpired:
        return 0.0, f"torch took more than {MATMUL:g} s"
    except OSError as error:
        return 0.0, str(error)
    except (ValueError, IndexError):
        return 0.0, (result.stderr.strip().splitlines() or ["torch printed nothing"])[-1][:200]


def _measure_disk(base: Path) -> tuple[float, str]:
    """Return the disk's write rate in MB/s, and the reason if there is no result."""
    path, chunk, written = base / f"probe.{unique_token()}", os.urandom(PIECE), 0
    begun = time.perf_counter()
    try:
        with path.open("xb", buffering=0) as file:
            path.unlink()  # Unlink the open file at once, so that no file remains if this process is killed.
            while written < DISK_BYTES and time.perf_counter() - begun < DISK_TIME:
                written += file.write(chunk)
                os.fsync(file.fileno())
        return written / 1e6 / (time.perf_counter() - begun), ""
    except OSError as error:
        return 0.0, str(error)
