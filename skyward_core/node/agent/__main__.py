"""Start of an agent: ``python -m skyward_core.node.agent`` with the config as JSON on standard input.

Prints one line of JSON once the agent listens or has failed. The agent continues in its own session.
A node's folder has at most one agent: the process that holds the lock on ``agent.lock``.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from skyward_core.node.agent.config import AgentConfig
from skyward_core.node.bootstrap.host_inspection import is_running
from skyward_core.protocol.node_paths import UMASK, NodePaths

# Number of open files that an agent needs, measured and rounded up. FILES_PER_NODE covers its connections, its journal
# and the gang's ports. FILES_PER_WORKER covers the log files, the connection and the port of one worker.
FILES_PER_NODE, FILES_PER_WORKER = 32, 6
# limit of open files that an agent sets for itself if the system allows it; macOS allows no higher limit
MAX_FILES = 10_240


def main(is_client_waiting: Callable[[], bool] = lambda: True, prefix: str = "") -> None:
    # ``prefix`` begins the line with the agent's answer, so that the starter finds the line in other output.
    try:
        request = json.loads(sys.stdin.readline())
    except ValueError as error:  # The client disconnected before it had sent the whole config.
        answer: dict[str, Any] = {"ok": False, "error": f"invalid agent config: {error}"}
    else:
        answer = try_start(request, is_client_waiting)
    sys.stdout.write(f"{prefix}{json.dumps(answer)}\n")
    sys.stdout.flush()
    os._exit(0 if answer.get("ok") else 1)


def try_start(request: dict[str, Any], is_client_waiting: Callable[[], bool] = lambda: True) -> dict[str, Any]:
    """Start the agent that a client requests. Return the answer for the client, which may state an error."""
    try:
        config = AgentConfig.from_json(request)
        if request.get("ranks_per_node") == "gpu" and not config.free_gpus:
            from skyward_core.node.agent.gpu_detection import resolve_ranks_per_gpu

            config = resolve_ranks_per_gpu(config)
        return start(config, is_client_waiting)
    except (OSError, ValueError, TypeError) as error:
        from skyward_core.node.agent.worker_processes import describe_shortage

        named = "" if type(error) is ValueError else f"{type(error).__name__}: "
        return {"ok": False, "error": f"{named}{describe_shortage(error)}"}


def raise_file_limit(config: AgentConfig) -> AgentConfig:
    """Raise this process's limit of open files, because clients and metrics files need an unpredictable number.

    Returns:
        A config with the earlier limit, to which the agent resets it in the ranks.

    Raises:
        ValueError: If the system does not allow enough open files. Without free descriptors, runs would hang.
    """
    import resource

    workers = config.ranks_per_node * (config.concurrency if config.executor == "process" else 1)
    needed = FILES_PER_NODE + FILES_PER_WORKER * workers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(needed, MAX_FILES)
    if soft == resource.RLIM_INFINITY or soft >= limit:
        return config
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ValueError(
            f"node {config.node} needs at least {needed} open files for its ranks, but is limited to {hard}. Raise the "
            f"limit (ulimit -Hn {needed}, or LimitNOFILE= of its service), or use fewer ranks per node."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    return config.replace(file_limit=soft)


def preload_modules() -> None:
    """Import the modules that an agent needs."""
    from skyward_core.node.deferred_imports import import_asyncio

    import_asyncio()
    from skyward_core.node.agent import agent  # noqa: F401


def start(config: AgentConfig, is_client_waiting: Callable[[], bool] = lambda: True) -> dict[str, Any]:
    """Start the agent of a folder, or find the running one.

    Args:
        config: Configuration of the agent.
        is_client_waiting: Returns whether the client still waits for the answer. If the client has left, no agent
            starts, because another client may already have been informed that the folder has no agent.

    Returns:
        The answer for the client: ``ok``, and the agent's state or an ``error``.
    """
    previous_umask = os.umask(0o077)  # Other users must not be able to read the agent's files.
    login = os.environ.pop(UMASK, None)
    config = config.replace(umask=previous_umask if login is None else int(login, 8))
    folder = Path(config.folder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = open(config.paths.lock, "w")  # noqa: SIM115  # held until the agent exits
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            # A process that checks for a running agent holds a shared lock for a moment. Only an agent blocks others.
            if is_running(config.folder):
                return {"ok": True, "found": True, "socket": read_running_state(folder)["socket"]}
    if not is_client_waiting():
        _delete_if_unused(config)
        return {"ok": False, "error": "the client disconnected"}
    try:
        if config.free_gpus:
            from skyward_core.node.gpu_locks_and_usage import lock_gpus

            config = lock_gpus(config)
        config = raise_file_limit(config)
    except ValueError:
        _delete_if_unused(config)
        raise
    for part in (config.spool, config.blobs, Path(config.socket).parent):
        part.mkdir(parents=True, exist_ok=True, mode=0o700)
    readable, writable = os.pipe()
    if os.fork():
        os.close(writable)
        with open(readable, encoding="utf-8") as pipe:
            answer = pipe.read()
        return dict(json.loads(answer)) if answer else {"ok": False, "error": last_error_line(folder)}
    os.setsid()
    os.close(readable)
    serve(config, writable, lock)
    return {}


def _delete_if_unused(config: AgentConfig) -> None:
    """Delete the folder unless an earlier agent has used it."""
    if not Path(config.paths.state).exists():
        import shutil  # imported late, because its compression modules take half a megabyte

        shutil.rmtree(config.folder, ignore_errors=True)


def serve(config: AgentConfig, ready: int, lock: IO[str]) -> None:
    """Run the agent until it ends. Once the agent listens, write its answer for the client to the pipe ``ready``."""
    folder = Path(config.folder)
    null = os.open(os.devnull, os.O_RDWR)
    errors = os.open(config.paths.errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    os.chdir(config.cwd or folder)
    preload_modules()
    gc.freeze()  # Exclude the loaded modules from garbage collection, because they live as long as the agent.
    gc.enable()
    import asyncio

    from skyward_core.node.agent.agent import Agent

    def announce() -> None:
        state = {
            "pid": os.getpid(),
            "socket": config.socket,
            "pool": config.pool,
            "node": config.node,
            # seconds for which the node's folder is retained if the agent dies unexpectedly
            "idle_timeout": config.idle_timeout,
            "keep_results": config.keep_results,  # seconds for which unfetched results are retained, after idle_timeout
        }
        partial = Path(f"{config.paths.state}.part")
        partial.write_text(json.dumps(state), encoding="utf-8")
        partial.replace(config.paths.state)
        os.write(ready, json.dumps({"ok": True, "found": False} | state).encode())
        os.close(ready)

    code = 0
    try:
        asyncio.run(Agent(config).run(announce))
    except Exception:  # noqa: BLE001  # last chance to write the error to the log
        import traceback

        traceback.print_exc()
        code = 1
    finally:
        lock.close()
        os._exit(code)


def read_running_state(folder: Path) -> dict[str, Any]:
    """Return the state that a folder's running agent saved when it began to listen."""
    try:
        return dict(json.loads(Path(NodePaths(str(folder)).state).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise OSError(f"cannot find the socket of the agent that holds {folder}: {error}") from error


def last_error_line(folder: Path) -> str:
    from skyward_core.node.agent.agent_state_lease_deadman_and_network_info import last_line

    try:
        line = last_line(Path(NodePaths(str(folder)).errors))
    except OSError:
        line = ""
    return line or "the agent exited before it listened, without an error message"


if __name__ == "__main__":
    main()
