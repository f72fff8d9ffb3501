"""The program that says when this machine is about to be taken back. Its provider has given it, and it runs in a child:
what it asks may hang, lie or vanish."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from signal import SIGKILL
from typing import Any, cast

from .config import AgentConfig
from .processes import signal_group
from .spawn import mark

LONGEST = 4096  # bytes of a line
PAUSES = (1.0, 60.0)  # seconds before it is started again, the first time and at most

Heard = Callable[[dict[str, Any]], None]


class NoticeSource:
    """One node's. It ends with its standard input, and so with its agent.

    Args:
        config: of the node; it has the program.
        hear: told of each object that the program prints as a line of JSON.
        complain: told in words, once, where it does not go on by itself.
    """

    def __init__(self, config: AgentConfig, hear: Heard, complain: Callable[[str], None]) -> None:
        self._config, self._hear, self._complain = config, hear, complain
        self._child: subprocess.Popen[bytes] | None = None
        self._said = b""
        self._pause = PAUSES[0]
        self._complained = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Have it run, until :meth:`end`."""
        config = self._config
        try:
            self._child = child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", config.notices],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=os.environ | config.env | mark(config.folder),
                start_new_session=True,
            )
        except OSError as error:
            self._again(str(error))
            return
        child.returncode = 0  # the agent collects every child itself
        self._said = b""
        asyncio.get_running_loop().add_reader(cast(Any, child.stdout).fileno(), self._readable)

    def end(self) -> None:
        """Have it end."""
        if self._timer is not None:
            self._timer.cancel()
        self._close()

    def _close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            asyncio.get_running_loop().remove_reader(cast(Any, child.stdout).fileno())
            for pipe in (child.stdin, child.stdout):
                cast(Any, pipe).close()

    def _readable(self) -> None:
        child = self._child
        if child is None:
            return
        piece = os.read(cast(Any, child.stdout).fileno(), LONGEST)
        *lines, self._said = (self._said + piece).split(b"\n")
        for line in lines:
            self._line(line)
        if not piece or len(self._said) > LONGEST:
            if piece:
                signal_group(child.pid, SIGKILL)
            self._close()
            self._again("what asks for it has ended" if not piece else "what asks for it says no such thing")

    def _line(self, line: bytes) -> None:
        try:
            told = json.loads(line)
        except (ValueError, RecursionError):
            told = None
        if isinstance(told, dict):
            self._pause = PAUSES[0]
            self._hear(told)

    def _again(self, why: str) -> None:
        pause, self._pause = self._pause, min(PAUSES[1], self._pause * 2)
        if pause > PAUSES[0] and not self._complained:  # once may be an accident
            self._complained = True
            self._complain(why)
        self._timer = asyncio.get_running_loop().call_later(pause, self.begin)
