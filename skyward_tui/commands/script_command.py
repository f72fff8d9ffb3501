"""``skyward-tui run`` of a script whose functions are commands of ``sky.app``: they bring their own machines up."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

import click
from click.core import ParameterSource

from skyward_core.front.launch_options import with_hosts
from skyward_core.front.scripts import asked_python, interpreter_of, lacks, split_target
from skyward_core.model.errors import UsageError

from ..script_words import OWN_WORDS
from .console import Console

# Options of ours that mean something there; all else the script says itself.
HEEDED = ("target", "arguments", "provider", "hosts", "settings", "nodes", "python", "debug")
LIBRARY = "skyward_core"


def run_command(context: click.Context, target: str, commands: Sequence[str], console: Console) -> int:
    """Have ``python -m skyward_core`` run it in the place of this process.

    Args:
        target: the script, or ``script:command``.
        commands: those that the script has.

    Raises:
        UsageError: an option is none of such a script.
    """
    path, command = split_target(target)
    said = context.params
    if said["dry_run"]:
        raise UsageError(
            f"run --dry-run loads nothing, and only running {path} tells which machines its commands have: "
            f"`python -m {LIBRARY} --dry-run {path}` runs it, and rents nothing"
        )
    if unheeded := list(_unheeded(context)):
        raise UsageError(
            f"{path} has commands of sky.app ({', '.join(commands)}), which says what machines they have: "
            f"{', '.join(unheeded)} {'is' if len(unheeded) == 1 else 'are'} not for them. --provider, --hosts, --set, "
            "--nodes and --python are"
        )
    provider, settings = with_hosts(said["provider"], said["hosts"], said["settings"])
    words = [] if provider is None else ["--provider", provider]
    for name, text in settings.items():
        words += ["--set", f"{name}={text}"]
    words += [] if said["nodes"] is None else ["--nodes", str(said["nodes"])]
    words += [str(path), *([] if command is None else [command])]
    words += [f"--{each}" for each in said["arguments"]]
    words += [*context.args, *(context.meta[OWN_WORDS] or ())]
    python = _python(str(path), said["python"], console)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(python, [python, "-m", LIBRARY, *words])


def _python(script: str, asked: str | None, console: Console) -> str:
    """The interpreter that the script is for, if this library is installed there, as it makes the pool; else our own.

    Raises:
        UsageError: the one that was asked for has no such library.
    """
    found = interpreter_of(split_target(script)[0], asked, ask=asked_python)
    if not lacks(found, LIBRARY):
        return found.path
    if asked is not None:
        raise UsageError(
            f"{LIBRARY} is not installed for {asked}, and has to be where the script makes a pool"
        )
    console.note(f"{LIBRARY} is not installed for {found}: the script runs with {sys.executable}")
    return sys.executable


def _unheeded(context: click.Context) -> Iterator[str]:
    """The options that were given, and are of no use."""
    for each in context.command.params:
        name = each.name or ""
        if name not in HEEDED and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            yield each.opts[-1]
