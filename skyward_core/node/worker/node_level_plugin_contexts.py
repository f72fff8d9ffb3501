"""The process that holds the ``around_app`` contexts of a node's plugins, because the agent never runs user code.

The process exists only if a plugin has an ``around_app`` hook. It enters the contexts before the ranks are set up,
holds them across runs and epochs, and leaves them after the workers have ended.
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
from skyward_core.runtime import import_hooks_gc_pause_and_alias

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import ToWorker, ToWorkerSetup


def main(socket_path: str, folder: str, rank: str, number: str) -> None:
    """Hold the plugins' contexts until the agent ends this process, or until no agent has run for too long."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # the log is read while the process runs
    faulthandler.enable()
    import_hooks_gc_pause_and_alias.install()
    PluginContextServer(socket_path, float(os.environ.pop("SKYWARD_PATIENCE"))).serve()


class PluginContextServer:
    """Receiver of the agent's requests to enter and leave the contexts.

    ``_state`` (fresh, entering or entered) is reported to agents that connect.
    """

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
        from skyward_core.runtime.instance_info_and_attempt import instance_info, set_place

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
        except BaseException as error:  # noqa: BLE001  # reported as the outcome of all calls that need the context
            words, data = describe_error(error)
            self._channel.send({"t": "failed", "error": words}, data)
            return
        self._state = "entered"
        self._channel.send({"t": "entered"})

    def _leave(self) -> None:
        """Leave the plugins' contexts."""
        try:
            with self._stop:
                self._contexts.close()
        except Stopped:
            sys.exit(128 + signal.SIGTERM)
        except Exception:  # noqa: BLE001  # logged; a failing plugin must not block the node's end
            sys.excepthook(*sys.exc_info())
        self._stop.is_ending = True  # From now on SIGTERM is ignored, because the interpreter is exiting.
