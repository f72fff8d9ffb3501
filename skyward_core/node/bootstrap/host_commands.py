"""Commands that the client runs on a host besides starting the agent, executed by ``bootstrap.host_command_server``.

Every start of a pool loads this module, so rarely used modules are imported by the functions that need them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from skyward_core.node.bootstrap import receive_working_folder
from skyward_core.node.bootstrap.host_inspection import belongs_to_node, find_node_processes, is_running
from skyward_core.protocol.node_paths import NodePaths, pools_folder, worker_socket_path

Receive = Callable[[int], bytes]
Emit = Callable[[str], None]
END_TIMEOUT = 3.0  # seconds between SIGTERM and SIGKILL for an agent

_copies: dict[str, tuple[receive_working_folder.FolderCopy, list[receive_working_folder.FolderItem]]] = {}


def run_host_command(action: str, request: dict[str, Any], root: str, receive: Receive, emit: Emit) -> dict[str, Any]:
    """Execute a command and return the values of its answer.

    Args:
        action: Name of the command.
        request: Arguments of the command.
        root: Folder of skyward on the host.
        receive: Reads bytes that follow the request.
        emit: Sends a line of progress.

    Raises:
        OSError, ValueError: If the command fails.
    """
    base = Path(root)
    if action == "environment":
        from skyward_core.node.bootstrap import image_environment

        cwd = request["cwd"]
        python = image_environment.ensure_environment(request["image"], base, request["env"], cwd, emit, client=1)
        requirements = image_environment.list_requirements(request["image"])
        return {
            "python": python,
            "installed": image_environment.list_installed_packages(python) if requirements else {},
        }
    if action == "manifest":
        items = receive_working_folder.from_json(receive(request["size"]))
        copy = receive_working_folder.FolderCopy(base, request["name"], emit)
        missing, doubtful = copy.compare(items)
        found = {"wanted": missing, "doubtful": list(doubtful.items()), "folder": str(copy.folder)}
        if not missing and not doubtful and copy.is_same_listing(items):
            copy.close()
            return found | {"current": True}
        _copies[request["name"]] = (copy, items)
        return found
    if action == "files":
        copy, items = _copies.pop(request["name"])
        incoming = _InputReader(receive, request["size"])
        contents = receive_working_folder.DecompressedSource(incoming) if request["compressed"] else incoming
        with contextlib.closing(copy), contextlib.closing(incoming):
            copy.apply(items, request["same"], request["wanted"], contents)
        return {}
    if action == "reach":
        return {"reached": probe_hosts([(host, port) for host, port in request["places"]], request["seconds"])}
    if action == "end":
        return {"killed": end_agent(Path(pools_folder(root), request["folder"]), request["socket"])}
    if action == "gpus":
        return {"gpus": query_nvidia_smi()}
    if action == "look":
        from skyward_core.node.gpu_locks_and_usage import read_gpu_usage_in_child

        usage, reason = read_gpu_usage_in_child()
        return {"uses": usage, "why": reason}
    if action == "probe":
        from skyward_core.node.bootstrap.hardware_and_network_benchmark import measure_host

        return measure_host(base, request)
    if action == "send":
        from skyward_core.node.bootstrap.hardware_and_network_benchmark import measure_send

        return measure_send(request)
    raise ValueError(f"unknown host command {action!r}")


class _InputReader:
    """Readable source of the bytes that a request announced on standard input."""

    def __init__(self, receive: Receive, size: int) -> None:
        self._receive = receive
        self._left = size

    def read(self, size: int, /) -> bytes:
        size = min(size, self._left)
        self._left -= size
        return self._receive(size)

    def close(self) -> None:
        """Read and discard the remaining bytes, because the next request follows."""
        while self._left:
            self.read(1 << 20)


def end_agent(folder: Path, socket_path: str, timeout: float = END_TIMEOUT) -> list[int]:
    """Stop a node's agent and all its other processes. Delete its folder except for retained results.

    The agent gets SIGTERM first, so that it can stop its workers itself.

    Args:
        folder: The node's folder.
        socket_path: Path of the agent's socket.
        timeout: Seconds for each step.

    Returns:
        The pids that had to be killed.
    """
    # Wait for an agent that holds the lock but has not saved its pid yet. Otherwise it would continue without a folder.
    _wait_until(lambda: not is_running(str(folder)) or find_agent(folder) is not None, timeout)
    if (pid := find_agent(folder)) is not None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                # Resume the process, because a process stopped by SIGSTOP reacts only to SIGCONT and SIGKILL.
                os.kill(pid, signal.SIGCONT)
            if _wait_until(lambda: not is_running(str(folder)), timeout):
                break
    killed: set[int] = set()

    def none_left() -> bool:
        remaining = find_node_processes(str(folder))
        killed.update(remaining)
        kill_groups(remaining)
        return not remaining

    _wait_until(none_left, timeout)
    from skyward_core.node.agent.results_retained_after_node_end import (
        MIN_RETENTION,
        remove_or_retain,
        retention_seconds,
    )

    for path in (socket_path, worker_socket_path(socket_path)):
        with contextlib.suppress(OSError):
            Path(path).unlink()
    if folder.exists():
        remove_or_retain(folder, max(retention_seconds(folder), MIN_RETENTION))
    return sorted(killed)


def find_agent(folder: Path) -> int | None:
    """Return the pid of a folder's agent; None if there is no agent or its process cannot be verified."""
    try:
        pid = int(json.loads(Path(NodePaths(str(folder)).state).read_text(encoding="utf-8"))["pid"])
        is_agent = is_running(str(folder)) and (not Path("/proc/self").exists() or belongs_to_node(pid, str(folder)))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # The agent is still starting, or has already ended.
    return pid if is_agent else None


def _wait_until(reached: Callable[[], bool], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not reached():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def probe_hosts(addresses: list[tuple[str, int]], seconds: float) -> list[bool]:
    """Check which addresses respond, concurrently. A refused connection counts as a response."""
    import socket
    from concurrent.futures import ThreadPoolExecutor

    def answers(address: tuple[str, int]) -> bool:
        try:
            socket.create_connection(address, timeout=seconds).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return True

    with ThreadPoolExecutor(len(addresses)) as pool:
        return list(pool.map(answers, addresses))


def query_nvidia_smi() -> list[str]:
    """Return name, memory and driver of each GPU, as printed by nvidia-smi."""
    import shutil
    import subprocess

    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    result = subprocess.run(query, capture_output=True, text=True, check=False, timeout=20)
    return (
        result.stdout.strip().splitlines() if result.returncode == 0 else [result.stdout.strip() or "nvidia-smi failed"]
    )


def kill_groups(pids: Iterable[int]) -> None:
    """Send SIGKILL to the process groups of the given processes."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            group = os.getpgid(pid)
            if group == os.getpgrp():
                os.kill(pid, signal.SIGKILL)
            else:
                os.killpg(group, signal.SIGKILL)
