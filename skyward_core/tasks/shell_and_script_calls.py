"""Sky.shell and sky.script."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from skyward_core.model.errors import ScriptError, UsageError
from skyward_core.model.function import PendingFunction
from skyward_core.runtime.shell_and_scripts import ScriptRunner, ShellCommand
from skyward_core.util.redaction import secret_values
from skyward_core.util.user_files import read_bytes

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PROGRAM = re.compile(r"[\w./+-]+")
MAX_NAME_LENGTH = 40  # characters


def shell(
    command: str | Sequence[object],
    *,
    env: Mapping[str, object] | None = None,
    cwd: str | os.PathLike[str] = "",
    name: str | None = None,
    secrets: Sequence[str] = (),
    timeout: float | None = None,
) -> PendingFunction[None]:
    """A command as a call: each rank runs it in a shell (bash, where a node has it).

    ``sky.shell("nvidia-smi -L") @ pool`` runs it on every rank, ``>>`` on one. What it prints is the rank's log. It
    gives None, and fails where it ends with a status other than 0: that is the rank's. The rank's own Python comes
    first on its ``PATH``. Variables tell it of its place: ``SKYPILOT_NODE_RANK`` and others of that name, and
    ``SKYWARD_RANK``, ``SKYWARD_NODE_IPS`` and others (``docs/run/commands.md``).

    Args:
        command: what the shell reads, of as many lines as you like; or a list of words, which are one command.
        env: variables that it has beside the rank's; what is no text is made one. Values whose names say that they are
            secret (``API_KEY``) are blanked in what it prints.
        cwd: its folder: on the node, seen from the rank's working folder.
        name: what the run is called; None for the command's first word.
        secrets: values that are blanked, too.
        timeout: seconds that one rank may take; None for no limit.

    Raises:
        UsageError: there is no command, or what is given is none; or a variable's name or value is none.
        ValueError: ``timeout`` is not more than 0.
    """
    text = command if isinstance(command, str) else _join_command(command)
    if not text.strip():
        raise UsageError("which command? sky.shell() was given an empty one")
    for variable, said in (env or {}).items():
        if not isinstance(variable, str) or not _VARIABLE.fullmatch(variable):
            raise UsageError(f"env: {variable!r:.60} is no name of a variable")
        if said is None:
            raise UsageError(f"env: {variable} has no value; leave it out, or give it an empty text")
        if isinstance(said, bytes | bytearray):
            raise UsageError(f"env: {variable} is given bytes: give a text (.decode())")
    given = {name: _to_text(value) for name, value in (env or {}).items()}
    for variable, value in given.items():
        if "\0" in value:
            raise UsageError(f"env: what {variable} holds has a zero byte in it, which no variable can have")
    if "\0" in text:
        raise UsageError("the command has a zero byte in it, which no shell reads")
    if isinstance(secrets, str):
        raise UsageError("secrets is a list of values, not one text")
    run = ShellCommand(
        text, name or _program_name(text), given, os.fspath(cwd), (*secret_values(given), *map(str, secrets))
    )
    return PendingFunction(run, (), None).with_timeout(timeout)


def resolve_variables(option: str, said: Mapping[str, str | None]) -> dict[str, str]:
    """Variables with their values; those without one have this shell's.

    Args:
        option: how they were given, for errors.
        said: they.

    Raises:
        UsageError: this shell has none of that name.
    """
    found = {}
    for name, text in said.items():
        if text is None and (text := os.environ.get(name)) is None:
            raise UsageError(
                f"{option} {name}: this shell has no variable of that name; "
                + (f"export {name} first" if option == "--secret" else f"write {option} {name}=VALUE")
            )
        found[name] = text
    return found


def _join_command(words: object) -> str:
    """A command of its words, as a shell reads it.

    Raises:
        UsageError: they are none.
    """
    if isinstance(words, bytes | bytearray | Mapping) or not isinstance(words, Iterable):
        hint = ""
        if isinstance(words, bytes | bytearray):
            hint = ": give a text (.decode())"
        elif isinstance(words, os.PathLike):
            hint = ": give a list, [path]"
        kind = "None" if words is None else f"of the type {type(words).__name__}"
        raise UsageError(f"a command is a text, or a list of words; this one is {kind}{hint}")
    found = []
    for number, word in enumerate(words, 1):
        if word is None or isinstance(word, bytes | bytearray):
            raise UsageError(f"word {number} of the command is {type(word).__name__}, not a text: {word!r:.40}")
        found.append(_to_text(word))
    if found and not found[0].strip():
        raise UsageError("which command? the first word of it, the program, is empty")
    return shlex.join(found)


def _to_text(value: object) -> str:
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _program_name(text: str) -> str:
    """The program that a command begins with: what stands behind it may be nobody's business."""
    for line in text.splitlines():
        words = [word for word in line.split() if "=" not in word]
        if words and not words[0].startswith("#") and _PROGRAM.fullmatch(words[0]):
            return words[0].rpartition("/")[2][:MAX_NAME_LENGTH] or "shell"
    return "shell"


def script(
    path: str | os.PathLike[str],
    args: Sequence[object] = (),
    *,
    module: bool = False,
    torchrun: bool = False,
    timeout: float | None = None,
) -> PendingFunction[None]:
    """A whole script as a call: each rank runs it as its main program, with ``sys.argv`` of its own.

    What ``python train.py --epochs 3`` runs here, ``sky.script("train.py", ["--epochs", 3]) @ pool`` runs on each rank:
    ``__name__`` is ``"__main__"``, ``__file__`` is the node's copy, imports find what lies beside it. It gives None. It
    fails where it raises, and where it ends with a status other than 0. Each run of it has fresh processes.

    Args:
        path: the script, in the working folder of the pool; of a module, its name.
        args: its own; what is no text is made one.
        module: run it as ``python -m`` does.
        torchrun: have it find torchrun's variables (``RANK``, ``LOCAL_RANK``, ...) where there is one rank, too, as
            torchrun does; of several ranks each has them anyway.
        timeout: seconds that one rank may take; None for no limit.

    Raises:
        ScriptError: there is no such script, or it does not parse.
        UsageError: ``args`` is one text, not a list of them.
        ValueError: ``timeout`` is not more than 0.
    """
    if isinstance(args, str | bytes):
        raise UsageError(f"the arguments of a script are a list, such as {args.split()!r}, not one text")
    words = [os.fspath(each) if isinstance(each, os.PathLike) else str(each) for each in args]
    if module:
        if not all(part.isidentifier() for part in str(path).split(".")):
            raise ScriptError(f"{path} is no name of a module; a script is run without module=True")
        run = ScriptRunner(str(path), b"", words)
    else:
        from skyward_core.tasks.script_inspection import parse_script

        file = Path(os.path.abspath(path))  # noqa: PTH100  a link keeps its own name, as Python has it
        parse_script(file)
        run = ScriptRunner(str(file), read_bytes(file), words)
        if not run.source:
            run.source = b"\n"  # an empty script is one
    run.torchrun = bool(torchrun)
    return PendingFunction(run, (), None).with_timeout(timeout)
