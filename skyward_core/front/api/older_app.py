"""``sky.app``: functions of a script that are commands, as the newest generation has them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar, get_type_hints

from ...model.errors import UsageError
from ...model.function import function
from ...model.older_words import of_calls
from ...tasks.annotations import of_default
from ...tasks.arguments import typed

P = ParamSpec("P")
T = TypeVar("T")


class _Command(NamedTuple):
    fn: Callable[..., Any]
    machines: Mapping[str, Any]


_commands: dict[str, _Command] = {}
_called: list[str] = []  # those that the script has called by itself


class app:
    """The machines that a script's functions are for. Each that it decorates stays what it is, and is a command, too:

        @sky.app(provider=sky.AWS(), accelerator="A100", image=sky.Image(pip=["torch"]))
        def train(epochs: int = 10) -> dict: ...

    ``python -m skyward_core train.py --epochs 5`` brings the machines up, runs it there, prints what it returns as
    JSON, and takes them down. Of several functions the first word says which; ``--node all`` runs it on every rank.

    Args:
        retry: as ``sky.function`` takes it.
        **machines: as ``sky.Compute`` takes them.
    """

    def __init__(self, *, retry: Callable[[Any, int], bool] | None = None, **machines: Any) -> None:
        of_calls({"retry": retry})
        self._machines = machines

    def __call__(self, fn: Callable[P, T]) -> Callable[P, T]:
        _commands[fn.__name__] = _Command(fn, self._machines)

        @wraps(fn)
        def itself(*args: P.args, **kwargs: P.kwargs) -> T:
            _called.append(fn.__name__)
            return fn(*args, **kwargs)

        return itself


def is_asked() -> bool:
    """Whether the script that has run here has commands, and has called none of them by itself."""
    return bool(_commands) and not _called


def run(words: Sequence[str], *, dry_run: bool = False) -> None:
    """Run a command on its machines, and print what it gives.

    Args:
        words: of the command line: the command's name, if there are several, and its arguments.
        dry_run: only print what would be rented for it.

    Raises:
        UsageError: there is no such command, or it does not take these.
        RunError: it failed.
    """
    from .compute import Compute

    name, rest = _named(list(words))
    fn, machines = _commands[name]
    if "--help" in rest:
        print(f"{name}{inspect.signature(fn)}\n{inspect.getdoc(fn) or ''}".rstrip())  # noqa: T201
        return
    given, everywhere = _given(name, fn, rest)
    call = function(fn)(**given)
    pool = Compute(**machines)
    if dry_run:
        print(pool.plan())  # noqa: T201
        return
    with pool as compute:
        value = call @ compute if everywhere else call >> compute
    print(json.dumps(value, default=str))  # noqa: T201


def _named(words: list[str]) -> tuple[str, list[str]]:
    if words and (name := words[0].replace("-", "_")) in _commands:
        return name, words[1:]
    if len(_commands) == 1:
        return next(iter(_commands)), words
    raise UsageError(f"the script has several commands: say which, {' or '.join(_commands)}")


def _given(name: str, fn: Callable[..., Any], words: list[str]) -> tuple[dict[str, Any], bool]:
    """Arguments by name, and whether every rank is to have the call."""
    parameters = inspect.signature(fn).parameters
    kinds = get_type_hints(fn)
    given: dict[str, Any] = {}
    where = "any"
    while words:
        word, is_said, text = words.pop(0).partition("=")
        if word in ("-f", "--foreground"):
            continue
        flag = word.removeprefix("--").replace("-", "_")
        if word == "--node":
            where = text if is_said else words.pop(0) if words else ""
            continue
        is_no = flag.startswith("no_") and flag not in parameters
        parameter = parameters.get(flag.removeprefix("no_") if is_no else flag)
        if not word.startswith("--") or parameter is None:
            offered = ", ".join(f"--{each.replace('_', '-')}" for each in parameters)
            raise UsageError(f"{name} takes no {word!r:.60}: it has {offered or 'no arguments'}")
        kind = kinds.get(parameter.name, of_default(parameter.default))
        if kind is bool and not is_said and not (words and not words[0].startswith("--")):
            given[parameter.name] = not is_no
            continue
        if not is_said and not words:
            raise UsageError(f"{word} of {name} wants a value")
        try:
            given[parameter.name] = typed(parameter.name, text if is_said else words.pop(0), kind, name)
        except ValueError as error:
            raise UsageError(str(error)) from None
    if where not in ("any", "all"):
        raise UsageError(f"--node {where!r:.60} is not to be had: any of them runs it, or all do")
    missing = [
        each.name for each in parameters.values() if each.default is each.empty and each.name not in given
    ]
    if missing:
        raise UsageError(f"{name} wants --{', --'.join(each.replace('_', '-') for each in missing)}, too")
    return given, where == "all"
