"""Start and supervision of the process that holds the ``around_app`` contexts of a node's plugins."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from skyward_core.node.agent.agent_state_lease_deadman_and_network_info import NodeState
from skyward_core.node.agent.frame_connection import Connection
from skyward_core.node.agent.worker_processes import (
    Process,
    call_on_exit,
    describe_exit,
    describe_shortage,
    signal_group,
    spawn,
)
from skyward_core.protocol.frame_codec import Header
from skyward_core.protocol.node_paths import APP_LOG

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import ErrorKeys, FromWorker, PluginErrorKeys, WorkerHello


# rank and worker number of the process that holds the node's plugin contexts, on its command line
PLUGIN_CONTEXT_PLACE = (-1, 0)


class PluginContextProcess:
    """The process that holds the plugins' ``around_app`` contexts, started with the first gang that needs it.

    Args:
        state: State of the agent.
        pump: Called when ranks that waited for the contexts may continue.
        break_gang: Called with the reason when the contexts have ended.

    Attributes:
        process: The process, or None.
        entry_failure: Error and pickled exception if the contexts could not be entered.
    """

    def __init__(self, state: NodeState, pump: Callable[[], None], break_gang: Callable[[str], None]) -> None:
        self._state = state
        self._pump = pump
        self._break_gang = break_gang
        self.process: Process | None = None
        self.entry_failure: tuple[ErrorKeys | PluginErrorKeys, bytes] | None = None
        # frame that enters the contexts, to be sent once the new process has connected
        self._setup: tuple[Header, bytes] | None = None
        # whether the process has connected, but has not received the frame that enters the contexts
        self._fresh = False
        self._entering = ""

    @property
    def is_resolved(self) -> bool:
        """Whether entering the contexts has succeeded or failed, so that ranks need not wait any longer."""
        return self.entry_failure is not None or (self.process is not None and self.process.is_ready)

    def ensure_entered(self) -> None:
        """Start entering the contexts for the gang's epoch, unless they are already entered or being entered."""
        config = self._state.config
        info = self._state.rank_info(config.node * config.ranks_per_node)
        self._setup = ({"t": "setup", "info": info}, self._state.gang.plugins)
        if self.process is None:
            self._spawn()
        elif self.process.kill_reason:
            self.entry_failure = None  # The old process is exiting. A new process starts afterwards.
        else:
            self._send_setup()

    def _send_setup(self) -> None:
        if self._fresh and self._setup is not None and self.process and self.process.connection:
            self._fresh = False
            self.process.connection.send(*self._setup)

    def _spawn(self) -> None:
        config = self._state.config
        self.entry_failure = None
        self._fresh, self._entering = False, ""
        log = os.open(config.spool / APP_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self.process = Process(spawn(config, "node_level_plugin_contexts", PLUGIN_CONTEXT_PLACE, log, log, {}))
        except OSError as error:
            message = f"the process for around_app could not be started: {describe_shortage(error)}"
            self.entry_failure = ({"type": "PluginError", "message": message, "plugin": ""}, b"")
            self._pump()
        finally:
            os.close(log)

    def adopt(self, pid: int) -> None:
        """Take over the process that an earlier agent started."""
        self.process = Process(pid)
        call_on_exit(pid, lambda: self.on_exit(None))

    def on_connected(self, connection: Connection, header: WorkerHello) -> None:
        """Register the connection of the process, which is either new or was started by an earlier agent."""
        if self.process is None:
            return
        self.process.connection = connection
        self._fresh = header["state"] == "fresh"
        if header["state"] == "entered":
            self._on_entered()
        self._send_setup()

    def on_frame(self, header: FromWorker, body: bytes) -> None:
        """Record the state of the contexts that the process reports in a frame."""
        if header["t"] == "entering":
            self._entering = header["plugin"]
        elif header["t"] == "entered":
            self._on_entered()
        elif header["t"] == "failed":
            self.entry_failure = (header["error"], body)
            self.exit_process(self._state.config.base_grace)
            self._pump()

    def _on_entered(self) -> None:
        if self.process is not None:
            self.process.is_ready = True
            self._pump()

    def exit_process(self, grace: float) -> None:
        """Make the process leave its contexts and exit. Send SIGKILL after the grace period."""
        process = self.process
        if process is None or process.kill_reason:
            return
        process.kill_reason = "it is no longer needed"
        if process.connection is not None:
            process.connection.send({"t": "exit"})
        if not process.is_ready and self.entry_failure is None:
            # Interrupt the process, which is still running a plugin's code, or has no contexts to leave.
            signal_group(process.pid, signal.SIGTERM)
        asyncio.get_running_loop().call_later(grace, self._kill_if_current, process)

    def _kill_if_current(self, process: Process) -> None:
        if self.process is process:
            signal_group(process.pid, signal.SIGKILL)

    def on_exit(self, status: int | None) -> None:
        """Update the state after the process has exited. ``status`` is its wait status if this agent started it."""
        process, self.process = self.process, None
        if process is None:
            return
        signal_group(process.pid, signal.SIGKILL)  # Kill child processes that the ended process left behind.
        if self._state.is_closing:
            return
        if process.kill_reason:
            if self.entry_failure is None:
                self._spawn()  # Start a new process, because contexts were requested while the old process was exiting.
            return
        _, cause = describe_exit(status)
        if process.is_ready:
            # The contexts are lost. A new process enters them in the next epoch.
            self._break_gang(f"the process of its plugins' around_app ended: {cause}")
            return
        failure = f"plugin {self._entering} failed in around_app" if self._entering else "around_app failed"
        message = f"{failure}: {cause}; {self._state.last_output(APP_LOG)}"
        self.entry_failure = ({"type": "PluginError", "message": message, "plugin": self._entering}, b"")
        self._pump()
