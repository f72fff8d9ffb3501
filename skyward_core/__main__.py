"""Command ``python -m skyward_core``: run a script that creates its own pools, optionally with another provider."""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import NoReturn
from zipfile import is_zipfile

from skyward_core import providers
from skyward_core.model import errors
from skyward_core.model.errors import ScriptError, UsageError
from skyward_core.model.provider_settings_schema import parse_settings
from skyward_core.providers import provider_class
from skyward_core.runtime import import_hooks_gc_pause_and_alias
from skyward_core.tasks import script_loader_child
from skyward_core.tasks.import_path import install_alias
from skyward_core.tasks.script_functions import list_commands, parse_script
from skyward_core.util.safe_file_access import is_dir, is_file, resolve_path

_end_signals: list[int] = []  # signals that this process has received and that end the script
_process = os.getpid()  # pid of this process, because signals keep their default effect in forked children


def main(argv: list[str] | None = None) -> int:
    """Run a script as ``__main__``, like ``python SCRIPT ARGS...``, and return the exit status.

    An error that ends the script is printed as Python prints it. Its exit status depends on the kind of the error
    (:mod:`skyward_core.model.errors`).
    """
    arguments = _parsed(argv)
    try:
        _override(arguments)
        # Install the hooks first, because finding a module imports the packages that contain it.
        import_hooks_gc_pause_and_alias.install()
        install_alias()
        import_hooks_gc_pause_and_alias.install_gc_pause()
        script = (
            load_main_from_module(arguments.module) if arguments.module else load_main_from_path(Path(arguments.script))
        )
        if arguments.dry_run and not list_commands(Path(script.file)):
            raise UsageError(
                f"--dry-run requires commands of sky.app, but {arguments.script} has none. Remove --dry-run"
            )
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return errors.USAGE
    except Exception as error:  # noqa: BLE001  packages of the module may raise anything
        return _print_error(error)
    module = script.make_module()
    # Set sys.modules permanently: exit handlers of the script find its globals here after this function has ended.
    sys.modules["__main__"] = module
    if script.folder:
        sys.path.insert(0, script.folder)
    sys.argv = [script.argument, *arguments.args]
    started = ["-m", arguments.module] if arguments.module else [script.argument]
    sys.orig_argv[:] = [sys.executable, *started, *arguments.args]
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            # Keep an ignored signal ignored: nohup, for example, ignores SIGHUP.
            signal.signal(number, _leave)
    script_loader_child.loading = arguments.dry_run  # With --dry-run, the script must not start a pool.
    try:
        exec(script.code, module.__dict__)  # noqa: S102  the purpose of this command
        if (commands := sys.modules.get(f"{__package__}.api.older_api_names")) and commands.should_run_command():
            return _run_reporting_errors(lambda: commands.run_command(arguments.args, dry_run=arguments.dry_run))
    except script_loader_child.PoolInScript:
        problem = f"{arguments.script} starts a pool itself, but --dry-run supports only commands of sky.app"
        print(f"error: {problem}. Remove --dry-run", file=sys.stderr)  # noqa: T201
        return errors.USAGE
    except SystemExit:
        if _end_signals:
            _discard_unwritable_output()
        raise
    except BaseException as error:  # noqa: BLE001  printed, then converted to an exit status
        if script.spec is None and isinstance(error, ImportError) and "no known parent package" in str(error):
            error.add_note(f"{arguments.script} is part of a package. Run it as a module: -m PACKAGE.MODULE")
        return _print_error(error)
    return errors.OK


def _print_error(error: BaseException) -> int:
    """Print the error that ended a script as Python does, and return the exit status of its kind."""
    own = error.__traceback__.tb_next if error.__traceback__ else None  # Remove this module's frame from the traceback.
    sys.excepthook(type(error), error.with_traceback(own), own)
    return errors.error_exit_code(error)


def _override(arguments: argparse.Namespace) -> None:
    """Make all pools of the script use the provider and the number of nodes that the command line names.

    Raises:
        UsageError: If an option is invalid.
    """
    settings = dict(each.partition("=")[::2] for each in arguments.settings)
    if arguments.provider is None:
        if settings:
            raise UsageError("--set requires a provider. Name it with --provider")
    else:
        provider = provider_class(arguments.provider)
        parse_settings(provider, settings)
        arguments.provider = provider.name
    nodes = arguments.nodes
    if arguments.provider is not None or nodes is not None:
        providers.set_override(arguments.provider, settings, int(nodes) if nodes and nodes.isdecimal() else nodes)


def _run_reporting_errors(work: Callable[[], None]) -> int:
    """Run a command that the script declares, and return its exit status. Report errors like the script's own."""
    try:
        work()
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return errors.USAGE
    return errors.OK


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    if os.getpid() != _process:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
    _end_signals.append(number)
    # Ignore a repeated SIGHUP: if a terminal is closed, the kernel and the shell both send it.
    # Set a handler that does nothing, because child processes would inherit SIG_IGN.
    signal.signal(signal.SIGHUP, lambda *_: None)
    # Raise an exception, so that the ``with`` blocks of the script's pools tear the pools down.
    raise SystemExit(128 + number)


def _discard_unwritable_output() -> None:
    """Discard buffered output if the terminal is closed, because Python would otherwise exit with another status."""
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
        description="Run a script like python does, optionally with another provider for its pools.",
    )
    parser.add_argument("--provider", metavar="NAME", help="replace the script's providers by this one")
    parser.add_argument(
        "--set", dest="settings", metavar="KEY=VALUE", action="append", default=[],
        help="set an option of that provider; repeatable",
    )  # fmt: skip
    parser.add_argument("--nodes", metavar="N|MIN:MAX", help="replace the number of machines of each pool")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="show what a command of sky.app would rent, without renting anything",
    )
    parser.add_argument(
        "-m", dest="module", metavar="MODULE", nargs=argparse.REMAINDER,
        help="run this module with its ARGS, instead of a SCRIPT",
    )  # fmt: skip
    parser.add_argument("script", metavar="SCRIPT", nargs="?")
    parser.add_argument("args", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script")
    return parser


def _parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.module:  # All words after the module's name are arguments of the module.
        arguments.script, *arguments.args = arguments.module
        arguments.module = arguments.script
    elif not arguments.script:
        parser.error("name a SCRIPT, or a module with -m MODULE")
    return arguments


@dataclass(frozen=True)
class MainModule:
    """Compiled code of a ``__main__`` module, with the attributes that Python gives the module.

    Attributes:
        code: Compiled code.
        file: Absolute path of the code's file. For a member of an archive, a path inside the archive.
        argument: Value of ``sys.argv[0]``.
        folder: Entry to insert at the front of ``sys.path``; "" if the present entries are sufficient.
        spec: Import spec; None for a plain file.
    """

    code: CodeType
    file: str
    argument: str
    folder: str
    spec: ModuleSpec | None = None

    def make_module(self) -> ModuleType:
        """Return a new ``__main__`` module in which the code has not run yet."""
        module = ModuleType("__main__")
        module.__file__ = self.file
        if (spec := self.spec) is not None:
            module.__spec__, module.__loader__, module.__package__ = spec, spec.loader, spec.parent
            vars(module)["__cached__"] = spec.cached
        return module


def load_main_from_path(path: Path) -> MainModule:
    """Return the main module that ``python PATH`` runs.

    Raises:
        ScriptError: If the path does not exist, cannot be read or does not parse.
    """
    is_archive = path.suffix != ".py" and is_file(path) and is_zipfile(path)
    if is_archive or (is_dir(path) and is_file(path / "__main__.py")):
        return _load_archive(path)
    tree = parse_script(path)
    with warnings.catch_warnings():
        # Ignore warnings, because parse_script has already compiled this code and shown them.
        warnings.simplefilter("ignore")
        code = compile(tree, str(path), "exec", dont_inherit=True)
    return MainModule(code, str(path.absolute()), str(path), str(resolve_path(path).parent))


def load_main_from_module(name: str) -> MainModule:
    """Return the main module that ``python -m NAME`` runs. Import its parent packages.

    Raises:
        UsageError: If the module does not exist.
        SyntaxError, ...: If a parent package raises during its import.
    """
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            # ``python -m`` runs the ``__main__`` module of a package.
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # The package exists, but a module that it imports does not.
        spec = None
    except (ImportError, ValueError) as error:  # The name is relative, or its parent is a module and not a package.
        raise UsageError(f"no module {name} to run: {error}") from error
    if spec is None:
        raise UsageError(f"package {name} has no __main__ to run" if name in sys.modules else _no_module_message(name))
    return _load_spec(spec, str(spec.origin), "")


def _no_module_message(name: str) -> str:
    if name.endswith(".py"):
        return f"no module {name}: -m takes the name of a module. Leave -m out for a file"
    return f"no module {name} to run in {sys.path[0] or '.'} or among the installed packages"


def _load_archive(path: Path) -> MainModule:
    spec = PathFinder.find_spec("__main__", [str(path)])
    if spec is None:
        raise ScriptError(f"{path} is an archive without a __main__.py. Name a script")
    return _load_spec(spec, str(path), str(path))


def _load_spec(spec: ModuleSpec, argument: str, folder: str) -> MainModule:
    get_code = getattr(spec.loader, "get_code", None)
    code = None if get_code is None else get_code(spec.name)
    if code is None:
        raise UsageError(f"module {spec.name} is not Python code, so it cannot run as a script")
    return MainModule(code, str(spec.origin), argument, folder, spec)


if __name__ == "__main__":
    sys.exit(main())
