"""``python -m skyward_core [--provider NAME] [--nodes N] SCRIPT [ARGS...]``, or ``-m MODULE`` for SCRIPT: run a whole
script, its pools included."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from skyward_core.model import errors
from skyward_core.providers.provider import parse_settings
from skyward_core.runtime import import_alias_and_hooks
from skyward_core.store import state_folder
from skyward_core.tasks import script_loader_child
from skyward_core.tasks.interpreter_compatibility_and_import_path import install_alias
from skyward_core.tasks.main_module_code import load_main_from_module, load_main_from_path
from skyward_core.tasks.script_inspection import list_commands

from .model.errors import UsageError
from .providers import provider_class

_told: list[int] = []  # signals that had the script end


def main(argv: list[str] | None = None) -> int:
    """Run a script as ``__main__``, as ``python SCRIPT ARGS...`` would; give the exit status.

    An error that ends the script prints as Python prints it; its exit status says more
    (:mod:`skyward_core.model.errors`).
    """
    arguments = _parsed(argv)
    try:
        _override(arguments)
        import_alias_and_hooks.install()  # packages above a module are imported to find it
        install_alias()
        import_alias_and_hooks.install_gc_pause()
        script = (
            load_main_from_module(arguments.module) if arguments.module else load_main_from_path(Path(arguments.script))
        )
        if arguments.dry_run and not list_commands(Path(script.file)):
            raise UsageError(f"--dry-run is for scripts with commands of sky.app, and {arguments.script} has none")
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return errors.USAGE
    except Exception as error:  # noqa: BLE001  of what was imported to find a module
        return _shown(error)
    module = script.make_module()
    # Functions of the script find their globals here also after this function's end, in exit handlers.
    sys.modules["__main__"] = module
    if script.folder:
        sys.path.insert(0, script.folder)
    sys.argv = [script.argument, *arguments.args]
    started = ["-m", arguments.module] if arguments.module else [script.argument]
    sys.orig_argv[:] = [sys.executable, *started, *arguments.args]
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # under nohup, say
            signal.signal(number, _leave)
    script_loader_child.loading = arguments.dry_run  # a pool of the script's own does not start then
    try:
        exec(script.code, module.__dict__)  # noqa: S102  running the person's script is what we are for
        if (commands := sys.modules.get(f"{__package__}.api.older_api_names")) and commands.should_run_command():
            return _told_of(lambda: commands.run_command(arguments.args, dry_run=arguments.dry_run))
    except script_loader_child.PoolInScript:
        said = f"{arguments.script} brings a pool up by itself, and --dry-run tells of commands of sky.app alone"
        print(f"error: {said}", file=sys.stderr)  # noqa: T201
        return errors.USAGE
    except SystemExit:
        if _told:
            _have_streams()
        raise
    except BaseException as error:  # noqa: BLE001  shown as Python shows it, then turned into a status
        if script.spec is None and isinstance(error, ImportError) and "no known parent package" in str(error):
            error.add_note(f"{arguments.script} is part of a package: run it as a module, with -m PACKAGE.MODULE")
        return _shown(error)
    return errors.OK


def _shown(error: BaseException) -> int:
    """Show an error that ends a script as Python does; give the exit status that says more."""
    own = error.__traceback__.tb_next if error.__traceback__ else None  # without our frame
    sys.excepthook(type(error), error.with_traceback(own), own)
    return errors.error_exit_code(error)


def _override(arguments: argparse.Namespace) -> None:
    """Have the script's pools be as the command line says.

    Raises:
        UsageError: it says what makes no sense.
    """
    settings = dict(each.partition("=")[::2] for each in arguments.settings)
    if arguments.provider is None:
        if settings:
            raise UsageError("--set is a setting of the provider that --provider names")
    else:
        provider = provider_class(arguments.provider)
        parse_settings(provider, settings)
        arguments.provider = provider.name
    nodes = arguments.nodes
    if arguments.provider is not None or nodes is not None:
        state_folder.set_override(arguments.provider, settings, int(nodes) if nodes and nodes.isdecimal() else nodes)


def _told_of(work: Callable[[], None]) -> int:
    try:
        work()
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return errors.USAGE
    return errors.OK


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
    parser.add_argument(
        "--set", dest="settings", metavar="KEY=VALUE", action="append", default=[],
        help="a setting of that provider; repeatable",
    )  # fmt: skip
    parser.add_argument("--nodes", metavar="N|MIN:MAX", help="have so many machines in place of as many as it says")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="of a script with commands of sky.app: only tell what would be rented",
    )
    parser.add_argument(
        "-m", dest="module", metavar="MODULE", nargs=argparse.REMAINDER,
        help="run a module of that name, with its ARGS, in place of a SCRIPT",
    )  # fmt: skip
    parser.add_argument("script", metavar="SCRIPT", nargs="?")
    parser.add_argument("args", metavar="ARGS", nargs=argparse.REMAINDER, help="the script's own arguments")
    return parser


def _parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.module:  # whatever stands behind it is its own
        arguments.script, *arguments.args = arguments.module
        arguments.module = arguments.script
    elif not arguments.script:
        parser.error("name a SCRIPT, or a module with -m MODULE")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
