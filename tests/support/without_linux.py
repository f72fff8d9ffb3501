"""An interpreter without the parts of Python that only Linux has, as on macOS.

``make_python`` writes the interpreter: a shell script that starts this file with the arguments for Python.
"""

from __future__ import annotations

import builtins
import io
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

LACKING = {
    os: ("copy_file_range", "eventfd", "memfd_create", "pidfd_open", "posix_fadvise", "sched_getaffinity", "splice"),
    select: ("epoll",),
    signal: ("pidfd_send_signal",),
    socket: ("SO_PEERCRED",),
}
PATH_FUNCTIONS = {
    os: ("access", "listdir", "lstat", "open", "readlink", "scandir", "stat"),
    io: ("open",),
    builtins: ("open",),
}
LONGEST_SOCKET_PATH = 103  # bytes
SCRIPT = """\
#!/bin/sh
flags=
while :; do case $1 in
    -[IESPBsu]*) flags="$flags $1"; shift;;
    -X|-W) flags="$flags $1 $2"; shift 2;;
    -V*|--version) exec {real} "$1";;
    *) break;;
esac; done
exec {real} $flags {launcher} "$0" "$@"
"""


def make_python(folder: Path) -> Path:
    """Write the interpreter, which runs this interpreter without Linux's parts."""
    program = folder / "python"
    program.write_text(SCRIPT.format(real=sys.executable, launcher=__file__))
    program.chmod(0o755)
    return program


def _is_hidden(path: object) -> bool:
    text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
    return text == "/proc" or text.startswith("/proc/")


def _without_proc(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        if args and _is_hidden(args[0]):
            if function is ACCESS:
                return False
            raise FileNotFoundError(2, "No such file or directory", args[0])
        return function(*args, **named)

    return call


ACCESS = os.access


def _with_short_paths(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: socket.socket, address: Any) -> Any:
        if self.family == socket.AF_UNIX and (
            len(os.fsencode(address)) > LONGEST_SOCKET_PATH or os.fsencode(address)[:1] == b"\0"
        ):
            raise OSError("AF_UNIX path too long")
        return function(self, address)

    return call


def hide() -> None:
    """Remove the parts that only Linux has."""
    for module, names in LACKING.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    for module, names in PATH_FUNCTIONS.items():
        for name in names:
            setattr(module, name, _without_proc(getattr(module, name)))
    for name in ("bind", "connect"):
        setattr(socket.socket, name, _with_short_paths(getattr(socket.socket, name)))


def main(program: str, arguments: list[str]) -> None:
    """Run Python with these arguments."""
    sys.executable = program
    if not sys.flags.isolated:
        sys.path[0] = ""
    first = arguments[0] if arguments else "-"
    if first == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    sys.modules["__main__"] = module = ModuleType("__main__")
    space = vars(module)
    if first == "-c":
        sys.argv = ["-c", *arguments[2:]]
        code = compile(arguments[1], "<string>", "exec", dont_inherit=True)
    else:
        sys.argv = arguments or ["-"]
        text = sys.stdin.read() if first == "-" else Path(first).read_text("utf-8")
        code = compile(text, first, "exec", dont_inherit=True)
        if first != "-":
            sys.path[:0] = [str(Path(first).resolve().parent)]
            space["__file__"] = first
    exec(code, space)


if __name__ == "__main__":
    hide()
    main(sys.argv[1], sys.argv[2:])
