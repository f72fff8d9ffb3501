"""What the children of a rank print: by pipes, and from there into the spool's files.

Were the files themselves their standard output and error, a script that opens them anew (``echo x > /dev/stderr``,
``| tee /dev/stderr``) would empty them, all that the rank has printed so far included. Children that code starts by
other ways than :mod:`subprocess` and ``os.system`` still have the files.
"""

from __future__ import annotations

import fcntl
import os
import select
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ...wire.marks import identity

ROOM = 1 << 20  # bytes that a pipe holds, where the system lets us: so far is a child ahead of us
PIECE = 1 << 16


class Children:
    """Gives pipes to children, and passes on what comes.

    Args:
        write: takes bytes of standard output (1) or standard error (2).
        opened: called when there is a first child, and so others than us who print.
    """

    def __init__(self, write: Callable[[int, bytes], None], opened: Callable[[], None]) -> None:
        self._write = write
        self._opened = opened
        self._places = {stream: identity(stream) for stream in (1, 2)}
        self._pipes: dict[int, tuple[int, int]] = {}
        self._ours: dict[int, tuple[int, int]] = {}  # descriptors and their files: user code may close them
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forked)
        if "subprocess" in sys.modules:
            self._patch(sys.modules["subprocess"])
        else:
            sys.meta_path.insert(0, AtImport(self._patch, "subprocess"))
        os.system = self._system

    def drain(self) -> None:
        """Pass on what children have printed by now."""
        if self._pipes:
            with self._lock:
                for stream, (readable, _) in self._pipes.items():
                    with suppress(BlockingIOError):
                        while identity(readable) == self._ours[readable] and (
                            data := os.read(readable, PIECE)
                        ):
                            self._write(stream, data)

    def _patch(self, subprocess: Any) -> None:
        handles = subprocess.Popen._get_handles

        def get_handles(popen: Any, stdin: Any, stdout: Any, stderr: Any) -> Any:
            stdout = self._for_child(1) if stdout is None else stdout
            stderr = self._for_child(2) if stderr is None else stderr
            return handles(popen, stdin, stdout, stderr)

        subprocess.Popen._get_handles = get_handles

    def _system(self, command: Any) -> int:
        import subprocess

        code = subprocess.Popen(command, shell=True).wait()
        return code << 8 if code >= 0 else -code

    def _for_child(self, stream: int) -> int | None:
        """The end that a child gets; None where user code has put another file in the stream's place."""
        if self._places[stream] != identity(stream):
            return None
        with self._lock:
            if not self._pipes:
                self._open()
        writable = self._pipes[stream][1]
        return writable if identity(writable) == self._ours[writable] else None

    def _open(self) -> None:
        pipes = {}
        for stream in (1, 2):
            pipes[stream] = readable, writable = os.pipe()
            os.set_blocking(readable, False)
            with suppress(OSError, AttributeError):
                fcntl.fcntl(writable, fcntl.F_SETPIPE_SZ, ROOM)
        self._ours = {end: identity(end) for ends in pipes.values() for end in ends}
        self._pipes = pipes
        self._opened()
        threading.Thread(target=self._serve, args=(pipes,), name="child-output", daemon=True).start()

    def _serve(self, pipes: dict[int, tuple[int, int]]) -> None:
        poll = select.poll()
        for readable, _ in pipes.values():
            poll.register(readable, select.POLLIN)
        while all(event & select.POLLIN for _, event in poll.poll()):
            self.drain()

    def _forked(self) -> None:
        """A child that was forked leaves the passing on to us, and prints into the files."""
        self._pipes = {}
        self._lock = threading.Lock()


class AtImport:
    """Does something to modules as soon as each is imported."""

    def __init__(self, then: Callable[[Any], None], *names: str) -> None:
        self._names = set(names)
        self._then = then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._names:
            return None
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            self._names.remove(name)
            if not self._names:
                sys.meta_path.remove(self)
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                self._then(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
