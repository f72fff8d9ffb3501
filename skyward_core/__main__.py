"""``python -m skyward_core [--provider NAME] SCRIPT [ARGS...]``: run a whole script, its pools included."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import NoReturn

from .model import exit_status
from .model.errors import UsageError
from .providers import by_name
from .runtime import large_imports, older_import
from .store import home
from .tasks.scripts import parse

_told: list[int] = []  # signals that had the script end


def main(argv: list[str] | None = None) -> int:
    """Run a script as ``__main__``, as ``python SCRIPT ARGS...`` would; give the exit status.

    An error that ends the script prints as Python prints it; its exit status says more
    (:mod:`skyward_core.model.exit_status`).
    """
    arguments = _parser().parse_args(argv)
    try:
        if arguments.provider is not None:
            home.provider_override = by_name(arguments.provider).name
        tree = parse(Path(arguments.script))
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return exit_status.USAGE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # parse has compiled it once already
        code = compile(tree, arguments.script, "exec", dont_inherit=True)
    older_import.install()
    large_imports.install()
    module = ModuleType("__main__")
    module.__file__ = str(Path(arguments.script).absolute())
    # Functions of the script find their globals here also after this function's end, in exit handlers.
    sys.modules["__main__"] = module
    sys.path.insert(0, str(Path(arguments.script).resolve().parent))
    sys.argv = [arguments.script, *arguments.args]
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # under nohup, say
            signal.signal(number, _leave)
    try:
        exec(code, module.__dict__)  # noqa: S102  running the person's script is what we are for
        if (commands := sys.modules.get(f"{__package__}.front.api.older_app")) and commands.is_asked():
            return _told_of(lambda: commands.run(arguments.args))
    except SystemExit:
        if _told:
            _have_streams()
        raise
    except BaseException as error:  # noqa: BLE001  shown as Python shows it, then turned into a status
        own = error.__traceback__.tb_next if error.__traceback__ else None  # without this frame
        sys.excepthook(type(error), error.with_traceback(own), own)
        return exit_status.of_error(error)
    return exit_status.OK


def _told_of(work: Callable[[], None]) -> int:
    try:
        work()
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return exit_status.USAGE
    return exit_status.OK


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    _told.append(number)
    # Of one terminal that vanishes both the system and the shell tell.
    signal.signal(signal.SIGHUP, lambda *_: None)  # not ignored: children would inherit that
    # An exception, so that the script's pools are torn down on the way out.
    raise SystemExit(128 + number)


def _have_streams() -> None:
    """What a terminal that is gone did not take goes nowhere: else the interpreter fails to write it, and ends with a
    status of its own."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m skyward_core",
        description="Run a script as python does; its pools may come from another provider than it names.",
    )
    parser.add_argument("--provider", metavar="NAME", help="use it in place of the script's own providers")
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("args", metavar="ARGS", nargs=argparse.REMAINDER, help="the script's own arguments")
    return parser


if __name__ == "__main__":
    sys.exit(main())
