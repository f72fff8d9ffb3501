"""Commands of older API generations: the decorator ``sky.app``, and the runner of its commands with their arguments.

``python -m skyward_core SCRIPT`` runs a command of the script if the script has called none of its commands itself.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar, get_type_hints

from skyward_core.model.deprecated_and_unknown_arguments import check_function_options
from skyward_core.model.errors import UsageError
from skyward_core.model.function import function
from skyward_core.tasks.argument_parsing_and_sweeps import convert_argument
from skyward_core.tasks.parameter_types_from_source import default_type

P = ParamSpec("P")
T = TypeVar("T")

_commands: dict[str, tuple[Callable[..., Any], Mapping[str, Any]]] = {}
_called_commands: list[str] = []  # commands that the script has called itself


class app:
    """Decorator that turns functions into commands with their own machines. The functions themselves do not change.

        @sky.app(provider=sky.AWS(), accelerator="A100", image=sky.Image(pip=["torch"]))
        def train(epochs: int = 10) -> dict: ...

    ``python -m skyward_core train.py --epochs 5`` starts the machines, runs the function there, prints its value as
    JSON, and tears the machines down. If the script has several commands, the first word selects one. ``--node all``
    runs the function on every rank.

    Args:
        retry: Same as for ``sky.function``.
        **machines: Same as for ``sky.Compute``.
    """

    def __init__(self, *, retry: Callable[[Any, int], bool] | None = None, **machines: Any) -> None:
        check_function_options({"retry": retry})
        self._machines = machines

    def __call__(self, fn: Callable[P, T]) -> Callable[P, T]:
        _commands[fn.__name__] = fn, self._machines

        @wraps(fn)
        def itself(*args: P.args, **kwargs: P.kwargs) -> T:
            _called_commands.append(fn.__name__)
            return fn(*args, **kwargs)

        return itself


def should_run_command() -> bool:
    """Check whether the script has commands and has called none of them itself."""
    return bool(_commands) and not _called_commands


def run_command(words: Sequence[str], *, dry_run: bool = False) -> None:
    """Run a command on its machines and print its value as JSON.

    Args:
        words: Arguments of the command line: the command's name, required if there are several, and its arguments.
        dry_run: Only print the plan of the machines.

    Raises:
        UsageError: If the command does not exist, or does not accept the arguments.
        RunError: If the command failed.
    """
    from skyward_core.api.compute import Compute

    name, rest = _select_command(list(words))
    fn, machines = _commands[name]
    if "--help" in rest:
        print(f"{name}{inspect.signature(fn)}\n{inspect.getdoc(fn) or ''}".rstrip())  # noqa: T201
        return
    given, everywhere = _parse_command_arguments(name, fn, rest)
    call = function(fn)(**given)
    pool = Compute(**machines)
    if dry_run:
        print(pool.plan())  # noqa: T201
        return
    with pool as compute:
        value = call @ compute if everywhere else call >> compute
    print(json.dumps(value, default=str))  # noqa: T201


def _select_command(words: list[str]) -> tuple[str, list[str]]:
    if words and (name := words[0].replace("-", "_")) in _commands:
        return name, words[1:]
    if len(_commands) == 1:
        return next(iter(_commands)), words
    raise UsageError(f"the script has several commands. Name one of {', '.join(_commands)}.")


def _parse_command_arguments(name: str, fn: Callable[..., Any], words: list[str]) -> tuple[dict[str, Any], bool]:
    """Return the arguments by name, and whether the call runs on every rank."""
    parameters = inspect.signature(fn).parameters
    kinds = get_type_hints(fn)
    given: dict[str, Any] = {}
    where = "any"
    while words:
        word, has_value, text = words.pop(0).partition("=")
        if word in ("-f", "--foreground"):
            continue
        flag = word.removeprefix("--").replace("-", "_")
        if word == "--node":
            where = text if has_value else words.pop(0) if words else ""
            continue
        negated = flag.startswith("no_") and flag not in parameters
        parameter = parameters.get(flag.removeprefix("no_") if negated else flag)
        if not word.startswith("--") or parameter is None:
            offered = ", ".join(f"--{each.replace('_', '-')}" for each in parameters)
            raise UsageError(f"{name} has no argument {word!r:.60}. Its arguments: {offered or 'none'}")
        type_ = kinds.get(parameter.name, default_type(parameter.default))
        if type_ is bool and not has_value and not (words and not words[0].startswith("--")):
            given[parameter.name] = not negated
            continue
        if not has_value and not words:
            raise UsageError(f"{word} of {name} requires a value")
        try:
            given[parameter.name] = convert_argument(parameter.name, text if has_value else words.pop(0), type_, name)
        except ValueError as error:
            raise UsageError(str(error)) from None
    if where not in ("any", "all"):
        raise UsageError(f"--node {where!r:.60} is not supported. Use any or all.")
    missing = [each.name for each in parameters.values() if each.default is each.empty and each.name not in given]
    if missing:
        raise UsageError(f"{name} requires --{', --'.join(each.replace('_', '-') for each in missing)}")
    return given, where == "all"
