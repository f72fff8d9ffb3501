"""Commands that the client runs on a host besides starting the agent. Run by ``bootstrap.host_command_server``.

Modules that only some tasks need are imported by them: this is loaded on every start of a pool.
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
END_TIMEOUT = 3.0  # seconds between the polite signal and the final one

_copies: dict[str, tuple[receive_working_folder.FolderCopy, list[receive_working_folder.FolderItem]]] = {}


def run_host_command(what: str, wanted: dict[str, Any], root: str, receive: Receive, emit: Emit) -> dict[str, Any]:
    """Do one errand; the answer's values are the result.

    Raises:
        OSError, ValueError: it could not be done; says why.
    """
    base = Path(root)
    if what == "environment":
        from skyward_core.node.bootstrap import image_environment

        where = wanted["cwd"]
        python = image_environment.ensure_environment(wanted["image"], base, wanted["env"], where, emit, client=1)
        asked = image_environment.list_requirements(wanted["image"])
        return {
            "python": python,
            "installed": image_environment.list_installed_packages(python) if asked else {},
        }
    if what == "manifest":
        items = receive_working_folder.from_json(receive(wanted["size"]))
        copy = receive_working_folder.FolderCopy(base, wanted["name"], emit)
        missing, doubtful = copy.compare(items)
        found = {"wanted": missing, "doubtful": list(doubtful.items()), "folder": str(copy.folder)}
        if not missing and not doubtful and copy.is_same_listing(items):
            copy.close()
            return found | {"current": True}
        _copies[wanted["name"]] = (copy, items)
        return found
    if what == "files":
        copy, items = _copies.pop(wanted["name"])
        incoming = _InputReader(receive, wanted["size"])
        contents = receive_working_folder.DecompressedSource(incoming) if wanted["compressed"] else incoming
        with contextlib.closing(copy), contextlib.closing(incoming):
            copy.apply(items, wanted["same"], wanted["wanted"], contents)
        return {}
    if what == "reach":
        return {"reached": probe_hosts([(host, port) for host, port in wanted["places"]], wanted["seconds"])}
    if what == "end":
        return {"killed": end_agent(Path(pools_folder(root), wanted["folder"]), wanted["socket"])}
    if what == "gpus":
        return {"gpus": query_nvidia_smi()}
    if what == "look":
        from skyward_core.node.gpu_locks import read_gpu_usage_in_child

        seen, reason = read_gpu_usage_in_child()
        return {"uses": seen, "why": reason}
    if what == "probe":
        from skyward_core.node.bootstrap.hardware_benchmark import measure_host

        return measure_host(base, wanted)
    if what == "send":
        from skyward_core.node.bootstrap.hardware_benchmark import measure_send

        return measure_send(wanted)
    raise ValueError(f"this bundle knows no errand {what!r}")


class _InputReader:
    """The announced bytes of standard input, as something to read from."""

    def __init__(self, receive: Receive, size: int) -> None:
        self._receive = receive
        self._left = size

    def read(self, size: int, /) -> bytes:
        size = min(size, self._left)
        self._left -= size
        return self._receive(size)

    def close(self) -> None:
        """Take the rest: what is compressed may be read without its last bytes, and the next request follows."""
        while self._left:
            self.read(1 << 20)


def end_agent(folder: Path, socket_path: str, patience: float = END_TIMEOUT) -> list[int]:
    """End a node's agent and all else that belongs to it, for certain, and remove its folder, but for what nobody has
    fetched (see ``agent.retained_results``); returns what had to be killed.

    The agent is asked first (SIGTERM): it ends its workers itself.

    Args:
        patience: seconds that it has for that.
    """
    # Whoever holds the folder and has not said yet who it is would go on in the place that we have cleared.
    _wait_until(lambda: not is_running(str(folder)) or find_agent(folder) is not None, patience)
    if (pid := find_agent(folder)) is not None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                os.kill(pid, signal.SIGCONT)  # a stopped process acts on none but this and SIGKILL
            if _wait_until(lambda: not is_running(str(folder)), patience):
                break
    killed: set[int] = set()

    def none_left() -> bool:
        left = find_node_processes(str(folder))
        killed.update(left)
        kill_groups(left)
        return not left

    _wait_until(none_left, patience)
    from skyward_core.node.agent import retained_results

    for path in (socket_path, worker_socket_path(socket_path)):
        with contextlib.suppress(OSError):
            Path(path).unlink()
    if folder.exists():
        retained_results.remove_or_retain(
            folder, max(retained_results.retention_seconds(folder), retained_results.MIN_RETENTION)
        )
    return sorted(killed)


def find_agent(folder: Path) -> int | None:
    """The process that is a folder's agent, where there is one and it is what the folder says."""
    try:
        pid = int(json.loads(Path(NodePaths(str(folder)).state).read_text(encoding="utf-8"))["pid"])
        there = is_running(str(folder)) and (not Path("/proc/self").exists() or belongs_to_node(pid, str(folder)))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # it has not come so far, or has ended
    return pid if there else None


def _wait_until(reached: Callable[[], bool], patience: float) -> bool:
    deadline = time.monotonic() + patience
    while not reached():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def probe_hosts(places: list[tuple[str, int]], seconds: float) -> list[bool]:
    """Whether machines answer at all, be it with a refusal, asked at the same time."""
    import socket
    from concurrent.futures import ThreadPoolExecutor

    def answers(place: tuple[str, int]) -> bool:
        try:
            socket.create_connection(place, timeout=seconds).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return True

    with ThreadPoolExecutor(len(places)) as pool:
        return list(pool.map(answers, places))


def query_nvidia_smi() -> list[str]:
    """What nvidia-smi says of each GPU: name, memory, driver."""
    import shutil
    import subprocess

    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    said = subprocess.run(query, capture_output=True, text=True, check=False, timeout=20)
    return said.stdout.strip().splitlines() if said.returncode == 0 else [said.stdout.strip() or "nvidia-smi fails"]


def kill_groups(pids: Iterable[int]) -> None:
    """SIGKILL to processes and to the groups that they are in."""
    for pid in pids:
        try:
            group = os.getpgid(pid)
            if group == os.getpgrp():
                os.kill(pid, signal.SIGKILL)
            else:
                os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
