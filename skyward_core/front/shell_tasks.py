"""Commands as tasks for pools of whichever Python, and the variables that a person gives them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..model.errors import UsageError
from ..tasks.payload import make_task
from ..tasks.shell import shell, values_here

if TYPE_CHECKING:
    from ..model.function import PendingFunction
    from ..tasks.task import Task

__all__ = ["portable", "said_variables", "shell_task", "values_here"]


def shell_task(words: Sequence[str], env: Mapping[str, str], secrets: Mapping[str, str]) -> Task:
    """A command, pickled.

    Args:
        words: it: one that has several words is one command, and a single one is what a shell reads.
        env: variables that it has.
        secrets: more of them, whose values are blanked in what it prints.

    Raises:
        UsageError: it is none, or a variable cannot be.
    """
    command = words[0] if len(words) == 1 else shlex.join(words)
    return portable(shell(command, env={**env, **secrets}, secrets=tuple(secrets.values())))


def said_variables(option: str, texts: Sequence[str]) -> dict[str, str | None]:
    """Variables as a command line has them: ``NAME=VALUE``, or ``NAME`` for what this shell has.

    Args:
        option: how they were given, for errors.
        texts: they.

    Raises:
        UsageError: one has no name.
    """
    found: dict[str, str | None] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name.strip():
            raise UsageError(f"{option} is given NAME=VALUE, or NAME for what this shell has of that name")
        found[name.strip()] = value if equals else None
    return found


def portable(call: PendingFunction[None], folder: Path | None = None) -> Task:
    """A call of nothing but this library's own, pickled: any Python can make it.

    Args:
        folder: where large arguments are written.
    """
    return replace(make_task(call, folder=folder), portable=True)
