"""The agent's side of the process that holds plugins' ``around_app`` contexts; the other is
:mod:`..worker.around_app_process`."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...wire.frames import Header
from ...wire.node_paths import APP_LOG
from .connection import Connection
from .node_state import NodeState
from .process import Process, exit_words
from .processes import signal_group
from .spawn import spawn, when_ended

if TYPE_CHECKING:
    from ...wire.frame_types import ErrorWords
    from ...wire.node_frame_types import FromWorker, PluginErrorWords, WorkerHello

PLACE = (-1, 0)  # what stands for a worker's rank and number on its command line


class Apps:
    """At most one process, started when a gang comes whose plugins ask for it, and then kept.

    Args:
        pump: called when ranks may go on.
        break_gang: told why, when what the gang's plugins had around the node is gone.

    Attributes:
        process: the process, while there is one.
        failure: the outcome's error and the pickled exception, where the contexts could not be entered.
    """

    def __init__(self, state: NodeState, pump: Callable[[], None], break_gang: Callable[[str], None]) -> None:
        self._state = state
        self._pump = pump
        self._break_gang = break_gang
        self.process: Process | None = None
        self.failure: tuple[ErrorWords | PluginErrorWords, bytes] | None = None
        self._setup: tuple[Header, bytes] | None = None  # to give to a fresh process once it has greeted
        self._fresh = False  # it has greeted, and was given nothing
        self._entering = ""

    @property
    def settled(self) -> bool:
        """Whether ranks may be set up: the contexts are entered, or it is known that they cannot be."""
        return self.failure is not None or (self.process is not None and self.process.ready)

    def need(self) -> None:
        """Have the contexts entered for the gang's epoch: they are already, or will be."""
        config = self._state.config
        info = self._state.place(config.node * config.ranks_per_node)
        self._setup = ({"t": "setup", "info": info}, self._state.gang.plugins)
        if self.process is None:
            self._spawn()
        elif self.process.killed:
            self.failure = None  # it is on its way out, and is followed by another
        else:
            self._give()

    def _give(self) -> None:
        if self._fresh and self._setup is not None and self.process and self.process.connection:
            self._fresh = False
            self.process.connection.send(*self._setup)

    def _spawn(self) -> None:
        config = self._state.config
        self.failure = None
        self._fresh, self._entering = False, ""
        log = os.open(config.spool / APP_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self.process = Process(spawn(config, "around_app_process", PLACE, log, log, {}))
        except OSError as error:
            message = f"the process for around_app could not be started: {error}"
            self.failure = ({"type": "PluginError", "message": message, "plugin": ""}, b"")
            self._pump()
        finally:
            os.close(log)

    def adopt(self, pid: int) -> None:
        """Take over the process that another agent started."""
        self.process = Process(pid)
        when_ended(pid, lambda: self.ended(None))

    def connected(self, connection: Connection, header: WorkerHello) -> None:
        """The process greets: a fresh one, or one that outlived its agent."""
        if self.process is None:
            return
        self.process.connection = connection
        self._fresh = header["state"] == "fresh"
        if header["state"] == "entered":
            self._entered()
        self._give()

    def on_frame(self, header: FromWorker, body: bytes) -> None:
        """What the process says of its contexts."""
        if header["t"] == "entering":
            self._entering = header["plugin"]
        elif header["t"] == "entered":
            self._entered()
        elif header["t"] == "failed":
            self.failure = (header["error"], body)
            self.exit_process(self._state.config.grace)
            self._pump()

    def _entered(self) -> None:
        if self.process is not None:
            self.process.ready = True
            self._pump()

    def exit_process(self, grace: float) -> None:
        """Let the process leave its contexts and end; SIGKILL after the grace."""
        process = self.process
        if process is None or process.killed:
            return
        process.killed = "it is no longer needed"
        if process.connection is not None:
            process.connection.send({"t": "exit"})
        if not process.ready and self.failure is None:
            signal_group(process.pid, signal.SIGTERM)  # it is in user code, or has none to leave
        asyncio.get_running_loop().call_later(grace, self._kill_if, process)

    def _kill_if(self, process: Process) -> None:
        if self.process is process:
            signal_group(process.pid, signal.SIGKILL)

    def ended(self, status: int | None) -> None:
        """The process has ended, with this wait status if it was our child."""
        process, self.process = self.process, None
        if process is None:
            return
        signal_group(process.pid, signal.SIGKILL)  # children that outlived it
        if self._state.closing:
            return
        if process.killed:
            if self.failure is None:
                self._spawn()  # asked for again while it ended
            return
        _, words = exit_words(status)
        if process.ready:
            # What the plugins promised is gone: the next epoch enters it anew.
            self._break_gang(f"the process of its plugins' around_app ended: {words}")
            return
        doing = f"plugin {self._entering} failed in around_app" if self._entering else "around_app failed"
        message = f"{doing}: {words}; {self._state.last_words(APP_LOG)}"
        self.failure = ({"type": "PluginError", "message": message, "plugin": self._entering}, b"")
        self._pump()
