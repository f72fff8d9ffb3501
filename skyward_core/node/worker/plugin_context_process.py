"""The process of a node that holds its plugins' ``around_app`` contexts: the agent itself never runs user code.

It is there only where a plugin has that hook. It enters the contexts before the node's ranks are set up, keeps them
from run to run and from one epoch of the gang to the next, and leaves them after the node's workers have ended.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from skyward_core.node.worker.agent_channel import AgentChannel
from skyward_core.node.worker.returned_exceptions import describe_error
from skyward_core.node.worker.stop_signal import Stopped, StopSignal
from skyward_core.protocol.frame_codec import Header
from skyward_core.runtime import import_hooks

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import ToWorker, ToWorkerSetup


def main(socket_path: str, folder: str, rank: str, number: str) -> None:
    """Hold the contexts until told to leave them, or until there has been no agent for too long."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # its log is read while it lives
    faulthandler.enable()
    import_hooks.install()
    PluginContextServer(socket_path, float(os.environ.pop("SKYWARD_PATIENCE"))).serve()


class PluginContextServer:
    """See the module. ``_state`` is what an agent that did not start us is told: fresh, entering or entered."""

    def __init__(self, socket_path: str, patience: float) -> None:
        self._state = "fresh"
        self._contexts = ExitStack()
        self._stop = StopSignal(interrupts=True)
        self._channel = AgentChannel(socket_path, self._hello, patience)

    def _hello(self) -> tuple[Header, bytes]:
        return {"t": "hello", "pid": os.getpid(), "state": self._state}, b""

    def serve(self) -> None:
        header: ToWorker
        while True:
            try:
                header, body = self._channel.receive()
            except EOFError:
                break
            if header["t"] == "exit":
                break
            if header["t"] == "setup":
                self._enter(header, body)
        self._leave()

    def _enter(self, header: ToWorkerSetup, body: bytes) -> None:
        from skyward_core.plugins.plugin import enter_app, has_app_hook
        from skyward_core.runtime.instance_info import instance_info, set_place

        self._state = "entering"
        set_place(header["info"])
        info = instance_info()
        try:
            with self._stop, ExitStack() as entered:
                for plugin in pickle.loads(body):
                    if has_app_hook([plugin]):
                        self._channel.send({"t": "entering", "plugin": plugin.name})
                        entered.enter_context(enter_app([plugin], info))
                self._contexts = entered.pop_all()
                self._stop.preserve_handler()
        except Stopped:
            sys.exit(128 + signal.SIGTERM)
        except BaseException as error:  # noqa: BLE001  reported as the outcome of every call that needed it
            told, data = describe_error(error)
            self._channel.send({"t": "failed", "error": told}, data)
            return
        self._state = "entered"
        self._channel.send({"t": "entered"})

    def _leave(self) -> None:
        """End the process, through the plugins' contexts."""
        try:
            with self._stop:
                self._contexts.close()
        except Stopped:
            sys.exit(128 + signal.SIGTERM)
        except Exception:  # noqa: BLE001  a plugin's exit must not keep the node from ending; the log says it
            sys.excepthook(*sys.exc_info())
        self._stop.is_ending = True  # the interpreter ends like any other
