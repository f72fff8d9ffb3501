"""Options and command classes that several commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from skyward_core.util.safe_file_access import read_text
from skyward_tui.cli.fault_tolerant_stdio import StandardStream

if TYPE_CHECKING:
    from skyward_tui.cli.console_and_log_printer import Console


Decorated = Callable[..., Any]


def combine_options(*options: Callable[[Decorated], Decorated]) -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds options to a command, in the given order."""

    def decorate(command: Decorated) -> Decorated:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def repeatable_option(*names: str, metavar: str, help: str, **more: Any) -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds an option with several values to a command."""
    return click.option(*names, metavar=metavar, multiple=True, help=f"{help} Repeatable.", **more)


settings_option = repeatable_option("--set", "settings", metavar="KEY=VALUE", help="Set an option of the provider.")
# Options that filter offers. An option such as --nodes has another meaning here than in ``run``.
offer_options = combine_options(
    click.option("--accelerator", metavar="NAME[:N]", help="GPUs that a machine must have, such as H100:8."),
    click.option(
        "--max-hourly",
        metavar="$",
        type=click.FloatRange(0, min_open=True),
        help="Limit the hourly price, including disk and address.",
    ),
    click.option("--spot", is_flag=True, help="List only spot machines, which can be preempted at any time."),
    repeatable_option("--region", "regions", metavar="R", help="List only machines in this region."),
    repeatable_option("--zone", "zones", metavar="Z", help="List only machines in this zone."),
    click.option("--efa", is_flag=True, help="List only machines with EFA, the fast network of AWS."),
    click.option("--vcpus", metavar="N", type=click.IntRange(0), default=0, help="Require at least N vCPUs."),
    click.option("--memory", metavar="GB", type=click.FloatRange(0), default=0, help="Require at least GB of memory."),
    click.option("--arch", "architecture", type=click.Choice(["x86_64", "arm64"]), help="Require this architecture."),
    click.option("--block", metavar="HOURS", type=click.IntRange(1), help="List capacity blocks of this duration."),
    click.option(
        "--nodes", metavar="N", type=click.IntRange(1), help="Number of machines of the capacity block.  [default: 1]"
    ),
)


watch_option = click.option("--watch", is_flag=True, help="Show a live summary instead of the output of the ranks.")


def _read_env_file(context: click.Context, option: click.Parameter, path: str | None) -> None:
    """Read NAME=VALUE lines of a file. Errors do not quote values, because values may be secret."""
    try:
        lines = read_text(path).splitlines() if path else []
    except (OSError, ValueError) as error:
        raise click.BadParameter(
            f"{path} cannot be read: {getattr(error, 'strerror', '') or 'it is not text'}"
        ) from None
    for number, text in enumerate(lines, 1):
        line = text.strip().removeprefix("export ").lstrip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = map(str.strip, line.partition("="))
        if not equals or not name.isidentifier() or "\0" in value:
            raise click.BadParameter(
                f"{path}, line {number}: it is not NAME=VALUE. Correct the line, or put # before it"
            )
        is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        context.meta.setdefault(_FILE_VARIABLES, []).append(f"{name}={value[1:-1] if is_quoted else value}")


_FILE_VARIABLES = "file_variables"  # key in ``meta`` of click's context: NAME=VALUE texts from the files of --env-file


variable_options = combine_options(
    click.option(
        "--env-file",
        metavar="FILE",
        expose_value=False,
        is_eager=True,
        callback=_read_env_file,
        help="Set the variables of a file with lines NAME=VALUE. --env overrides them.",
    ),
    repeatable_option(
        "--env",
        "env",
        metavar="NAME[=VALUE]",
        help="Set a variable of the job.",
        callback=lambda context, _, given: (*context.meta.get(_FILE_VARIABLES, ()), *given),
    ),
    repeatable_option(
        "--secret", "secrets", metavar="NAME[=VALUE]", help="Set a variable whose value is masked in logs."
    ),
)


class NodeSelection(click.ParamType["int | tuple[int, ...]"]):
    """Option value: a number of nodes, or a list of node numbers. "2" is two nodes, "2," is node 2, "0" is node 0."""

    name = "N|LIST"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | tuple[int, ...]:
        if not isinstance(value, str):
            return tuple(value) if isinstance(value, tuple) else int(value)
        parts = value.split(",")
        if value.isdecimal() and int(value) > 0:
            return int(value)
        listed = [each for each in parts if each.strip()]
        named = [int(each) for each in listed if each.strip().isdecimal()]
        if (len(parts) > 1 or named == [0]) and len(named) == len(listed) == len(set(named)):
            return tuple(sorted(named))
        self.fail(f"{value!r} is neither a number of nodes nor a list of them, such as 2 or 0,2", param, ctx)


class Duration(click.ParamType[float]):
    """Option value: a duration such as 90, 90s, 10m or 2h, in seconds.

    Args:
        least, most: Limits in seconds.
    """

    name = "TIME"

    def __init__(self, least: float = 0.0, most: float = float("inf")) -> None:
        self._least, self._most = least, most

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        from skyward_core.model.spec_field_checks import duration

        # accept numbers such as "1e-3", which the app writes for short durations into command lines
        with suppress(ValueError):
            value = float(value)
        try:
            seconds = duration(value)
        except ValueError as error:
            self.fail(f"it {error}", param, ctx)
        if not self._least <= seconds <= self._most:
            limits = f"{self._least:g} to {self._most:g} s" if self._most < SHORTEST**-1 else "more than 0"
            self.fail(f"the value should be {limits}", param, ctx)
        return seconds


SHORTEST = 1e-300  # seconds; lower limit of durations that must be greater than 0


def given_parameters(context: click.Context) -> Iterator[click.Parameter]:
    """Yield the options and arguments that the user gave on the command line."""
    for each in context.command.params:
        if context.get_parameter_source(each.name or "") is ParameterSource.COMMANDLINE:
            yield each


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")


@contextmanager
def open_console(as_json: bool) -> Iterator[Console]:
    """Provide the console of a command. If the command raises an error, report it in one line and exit with its
    status."""
    from skyward_core.model import errors
    from skyward_core.model.errors import SkywardError
    from skyward_tui.cli.console_and_log_printer import Console

    console = Console(as_json)
    if as_json and isinstance(sys.stdout, StandardStream):
        sys.stdout.require()
    try:
        _start_log(console)
        yield console
    except SkywardError as error:
        console.report_error(error)
        sys.exit(errors.error_exit_code(error))
    except OSError as error:
        # imported late, because this module imports the whole client
        from skyward_core.client.session import name_limit

        console.report_error(name_limit(error))
        sys.exit(errors.FAILED)


class ConsoleCommand(click.Command):
    """A command whose function gets a console, then its options and arguments by name.

    Args:
        callback: The function. Returns the exit status; None for success.
        has_json: Whether the command has the option ``--json``, which is not passed to the function.
    """

    def __init__(
        self, name: str, *, callback: Callable[..., int | None], has_json: bool = True, **settings: Any
    ) -> None:
        super().__init__(name, callback=self._run, **settings)
        self.function = callback
        if has_json:
            json_option(self)

    def _run(self, **given: Any) -> int:
        with open_console(given.pop("as_json", False)) as console:
            if given.get("watch"):
                require_terminal(console, detach=given.get("detach", False))
            return self.function(console, **given) or 0


def require_terminal(console: Console, *, detach: bool = False) -> None:
    """Check that ``--watch`` can draw on a terminal.

    Raises:
        UsageError: If there is no terminal, or ``--watch`` is combined with an option that excludes it.
    """
    from skyward_core.model.errors import UsageError

    if console.as_json or detach:
        raise UsageError(f"--watch cannot be combined with {'--json' if console.as_json else '--detach'}")
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        raise UsageError("--watch needs a terminal on stderr")


def command(name: str | None = None, **settings: Any) -> Callable[[Callable[..., int | None]], ConsoleCommand]:
    """Return a decorator that converts a function to a :class:`ConsoleCommand`."""
    return click.command(name, **{"cls": ConsoleCommand, **settings})


def restore_help(command: click.Command) -> None:
    """Read the help of a command and its subcommands from their source if ``python -OO`` has removed docstrings."""
    if not command.help:
        import ast  # imported late, because only `python -OO` needs these modules
        import inspect

        function: Any = getattr(command, "function", command.callback)
        code = inspect.unwrap(function).__code__
        tree = ast.parse(read_text(code.co_filename))
        named = (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name == code.co_name)
        command.help = next(map(ast.get_docstring, named), None)
    for each in getattr(command, "commands", {}).values():
        restore_help(each)


def _start_log(console: Console) -> None:
    if not os.environ.get("SKYWARD_LOG"):
        return
    from skyward_core.client import user_settings_and_app_state as settings

    if note := settings.start_logging():
        console.note(note)


# Key of a context's ``meta`` for the words after ``--``; its value is None if there is no ``--``.
SCRIPT_ARGUMENTS = "own_words"
