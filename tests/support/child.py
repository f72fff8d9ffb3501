"""Started processes as context managers, which kill the process after a failure instead of waiting for it."""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType


class Child(subprocess.Popen[str]):
    """Process that is killed if its block raises, so that the exception is reported.

    ``Popen`` would wait for the process, and a test that had timed out would wait again.
    """

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, value, traceback)


def child(code: str, *args: object) -> subprocess.Popen[str]:
    """Run code in a process whose streams are all pipes."""
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
