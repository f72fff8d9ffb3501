"""Processes that tests start, as context managers that never wait for what a failed test has left."""

from __future__ import annotations

import subprocess
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
