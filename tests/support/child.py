"""Processes that tests start, as context managers that never wait for what a failed test has left."""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType


class Child(subprocess.Popen[str]):
    """A process that is killed where its block ends by an exception, so that the exception is what is seen.

    ``Popen`` itself waits there for the process: a test that waited in vain for it would go on to do so.
    """

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, value, traceback)


def child(code: str, *args: object) -> subprocess.Popen[str]:
    """Run some code, all of whose streams are pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_line(client: subprocess.Popen[str]) -> str:
    assert client.stdout is not None
    line = client.stdout.readline().strip()
    if not line:
        assert client.stderr is not None
        raise AssertionError(f"the client ended: {client.stderr.read()}")
    return line
