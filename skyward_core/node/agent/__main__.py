"""Start an agent: ``python -m skyward_core.node.agent`` with its config as JSON on standard input.

Answers with one line of JSON once the agent listens (or cannot), and leaves it running in a session of its own.
A folder has at most one agent: whoever holds the lock on its ``agent.lock`` is it.
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
from skyward_core.protocol.node_paths import UMASK, NodePaths


def main(wanted: Callable[[], bool] = lambda: True, before: str = "") -> None:
    # The client tells an answer by what is ``before`` it from what others print.
    try:
        request = json.loads(sys.stdin.readline())
    except ValueError as error:  # the client went away while it was telling
        answer: dict[str, Any] = {"ok": False, "error": f"the config does not parse: {error}"}
    else:
        answer = try_start(request, wanted)
    sys.stdout.write(f"{before}{json.dumps(answer)}\n")
    sys.stdout.flush()
    os._exit(0 if answer.get("ok") else 1)


def try_start(request: dict[str, Any], wanted: Callable[[], bool] = lambda: True) -> dict[str, Any]:
    """Start the agent that a client asks for; what went wrong is an answer too."""
    try:
        config = AgentConfig.from_json(request)
        if request.get("ranks_per_node") == "gpu" and not config.free_gpus:
            from skyward_core.node.agent.gpu_list import resolve_ranks_per_gpu

            config = resolve_ranks_per_gpu(config)
        return start(config, wanted)
    except (OSError, ValueError, TypeError) as error:
        named = "" if type(error) is ValueError else f"{type(error).__name__}: "
        return {"ok": False, "error": f"{named}{error}"}


def preload_modules() -> None:
    """Import what an agent needs."""
    from skyward_core.node.deferred_imports import import_asyncio

    import_asyncio()
    from skyward_core.node.agent import agent_lifetime  # noqa: F401


def start(config: AgentConfig, wanted: Callable[[], bool] = lambda: True) -> dict[str, Any]:
    """Start the agent of a folder, or find the one that runs there; returns what it says of itself.

    Args:
        wanted: whether the client still waits. One that has left may have been told that nothing is here: from the
            lock on it is told otherwise.
    """
    before = os.umask(0o077)  # what the agent itself writes is for nobody else
    login = os.environ.pop(UMASK, None)
    config = config.replace(umask=before if login is None else int(login, 8))
    folder = Path(config.folder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = open(config.paths.lock, "w")  # noqa: SIM115  held for the agent's whole life
    if not acquire_lock(lock):
        return {"ok": True, "found": True, "socket": read_running_state(folder)["socket"]}
    if not wanted():
        if not Path(config.paths.state).exists():
            import shutil  # it loads compressors, half a megabyte that agents else do without

            shutil.rmtree(folder, ignore_errors=True)
        return {"ok": False, "error": "the client has gone"}
    if config.free_gpus:
        from skyward_core.node.gpu_locks import lock_gpus

        try:
            config = lock_gpus(config)
        except ValueError:
            if not Path(config.paths.state).exists():
                import shutil

                shutil.rmtree(folder, ignore_errors=True)
            raise
    for part in (config.spool, config.blobs, Path(config.socket).parent):
        part.mkdir(parents=True, exist_ok=True, mode=0o700)
    readable, writable = os.pipe()
    if os.fork():
        os.close(writable)
        with open(readable, encoding="utf-8") as pipe:
            said = pipe.read()
        return dict(json.loads(said)) if said else {"ok": False, "error": last_error_line(folder)}
    os.setsid()
    os.close(readable)
    serve(config, writable, lock)
    return {}


def serve(config: AgentConfig, ready: int, lock: IO[str]) -> None:
    """Be the agent until its end; tells ``ready`` (a pipe) once it listens."""
    folder = Path(config.folder)
    null = os.open(os.devnull, os.O_RDWR)
    errors = os.open(config.paths.errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    os.chdir(config.cwd or folder)
    preload_modules()
    gc.freeze()  # what is here is here to stay
    gc.enable()
    import asyncio

    from skyward_core.node.agent.agent_lifetime import Agent

    def announce() -> None:
        state = {
            "pid": os.getpid(),
            "socket": config.socket,
            "pool": config.pool,
            "node": config.node,
            "idle_timeout": config.idle_timeout,  # how long to keep the folder should we die without a word
            "keep_results": config.keep_results,  # and, from then on, what nobody has fetched
        }
        partial = Path(f"{config.paths.state}.part")
        partial.write_text(json.dumps(state), encoding="utf-8")
        partial.replace(config.paths.state)
        os.write(ready, json.dumps({"ok": True, "found": False} | state).encode())
        os.close(ready)

    code = 0
    try:
        asyncio.run(Agent(config).run(announce))
    except Exception:  # noqa: BLE001  the last place where an error can still be written down
        import traceback

        traceback.print_exc()
        code = 1
    finally:
        lock.close()
        os._exit(code)


def acquire_lock(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_running_state(folder: Path) -> dict[str, Any]:
    """What the agent of a folder wrote about itself when it began to listen."""
    try:
        return dict(json.loads(Path(NodePaths(str(folder)).state).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise OSError(f"an agent holds {folder} but has not said where it listens: {error}") from error


def last_error_line(folder: Path) -> str:
    from skyward_core.node.agent.agent_state import last_line

    try:
        line = last_line(Path(NodePaths(str(folder)).errors))
    except OSError:
        line = ""
    return line or "the agent ended before it listened and left no word"


if __name__ == "__main__":
    main()
