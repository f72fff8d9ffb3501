"""The one interpreter that starts agents on this machine; see :mod:`skyward_core.node.agent.fork_server`."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from ...model.errors import PoolError

ROOT = str(Path(__file__).parents[3])
# Isolated and without site: an agent needs the standard library and this package, nothing else. What is imported here
# stays: nobody looks for garbage among it.
_CODE = f"""
import gc, sys
gc.disable()
sys.path.insert(0, {ROOT!r})
from skyward_core.node.put_off import import_asyncio
import_asyncio()
from skyward_core.node.agent.fork_server import main
main()
"""


class Starter:
    """Runs while somebody is inside its ``with`` block; blocks may nest, from any thread.

    Entering costs nothing but a process: it gets ready while the client goes on. It raises PoolError where there can
    be none.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._interpreter: _Interpreter | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._interpreter is None:
                try:
                    self._interpreter = _Interpreter()
                except OSError as error:
                    raise PoolError(f"no process can be started for the agents: {error}") from error
            self._users += 1

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._interpreter is not None:
                self._interpreter.close()
                self._interpreter = None

    async def start(self, request: dict[str, Any]) -> dict[str, Any]:
        """Start an agent; its config is the request, its answer what comes back.

        Raises:
            PoolError: no agent came of it; says why.
        """
        with self:
            interpreter = self._interpreter
            answer = await interpreter.ask(request) if interpreter else {}
        if not answer.get("ok"):
            why = answer.get("error") or "it said nothing"
            raise PoolError(f"the agent of {request['folder']} did not start: {why}")
        return answer


class _Interpreter(asyncio.Protocol):
    """The process, and what it says, read on the loop of who first asks it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _CODE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a ctrl-c in the terminal is for the client alone
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Task[asyncio.WriteTransport] | None = None
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._said = b""
        self._last_words = ""

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        if self._process.returncode is not None:
            return {"ok": False, "error": self._last_words}
        if self._opening is None:
            self._loop = asyncio.get_running_loop()
            self._opening = self._loop.create_task(self._open(self._loop))
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[request["folder"]] = answer
        (await asyncio.shield(self._opening)).write(json.dumps(request).encode() + b"\n")
        return await answer

    async def _open(self, loop: asyncio.AbstractEventLoop) -> asyncio.WriteTransport:
        await loop.connect_read_pipe(lambda: self, self._process.stdout)
        stdin, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, self._process.stdin)
        return stdin

    def data_received(self, data: bytes) -> None:
        *lines, self._said = (self._said + data).split(b"\n")
        for line in lines:
            answer: dict[str, Any] = json.loads(line)
            waiting = self._waiting.pop(answer["folder"], None)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended, as it should or not: its last words are for those who still wait."""
        if self._process.stderr is not None:
            with self._process.stderr as errors:
                self._last_words = errors.read().decode(errors="replace").strip()
        self._process.wait()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result({"ok": False, "error": self._last_words})

    def close(self) -> None:
        """Let it end. What it is asked still gets its answer."""
        if self._opening is None or self._loop is None:
            self._process.kill()  # it has started nothing
            self._process.communicate()
        else:
            self._loop.call_soon_threadsafe(self._opening.add_done_callback, _close)


def _close(opened: asyncio.Task[asyncio.WriteTransport]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()
