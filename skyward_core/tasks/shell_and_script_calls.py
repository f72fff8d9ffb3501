"""Shell commands and whole scripts as calls: ``sky.shell`` and ``sky.script``."""

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
from skyward_core.util.safe_file_access import read_bytes

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PROGRAM = re.compile(r"[\w./+-]+")
MAX_NAME_LENGTH = 40  # maximum characters of the name of a run that is derived from its command


def shell(
    command: str | Sequence[object],
    *,
    env: Mapping[str, object] | None = None,
    cwd: str | os.PathLike[str] = "",
    name: str | None = None,
    secrets: Sequence[str] = (),
    timeout: float | None = None,
) -> PendingFunction[None]:
    """Return a call that runs a shell command on each rank, in bash if the node has it.

    ``sky.shell("nvidia-smi -L") @ pool`` runs the command on every rank, ``>>`` on one rank. The command's output goes
    to the rank's log. The call returns None. It fails with the command's exit status if that is not 0. The rank's
    Python comes first on ``PATH``. Variables such as ``SKYPILOT_NODE_RANK``, ``SKYWARD_RANK`` and ``SKYWARD_NODE_IPS``
    describe the rank (``docs/run/commands.md``).

    Args:
        command: Text for the shell, of any number of lines; or a list of words, which form one command.
        env: Variables in addition to the rank's; values are converted to text. Values of variables with the name of a
            secret (``API_KEY``) are redacted in the output.
        cwd: Working folder on the node, relative to the rank's working folder.
        name: Name of the run; None for the first word of the command.
        secrets: Further values to redact.
        timeout: Time limit of one rank in seconds; None for no limit.

    Raises:
        UsageError: If the command is empty or invalid, or the name or value of a variable is invalid.
        ValueError: If ``timeout`` is not positive.
    """
    text = command if isinstance(command, str) else _join_command(command)
    if not text.strip():
        raise UsageError("sky.shell() needs a command, got an empty one")
    for variable, given_value in (env or {}).items():
        if not isinstance(variable, str) or not _VARIABLE.fullmatch(variable):
            raise UsageError(f"env: {variable!r:.60} is not a variable name")
        if given_value is None:
            raise UsageError(f"env: {variable} is None. Leave it out, or pass an empty string")
        if isinstance(given_value, bytes | bytearray):
            raise UsageError(f"env: {variable} is bytes. Pass a str (.decode())")
    given = {name: _to_text(value) for name, value in (env or {}).items()}
    for variable, value in given.items():
        if "\0" in value:
            raise UsageError(f"env: the value of {variable} contains a zero byte")
    if "\0" in text:
        raise UsageError("the command contains a zero byte")
    if isinstance(secrets, str):
        raise UsageError("secrets must be a list of values, not one str")
    run = ShellCommand(
        text, name or _program_name(text), given, os.fspath(cwd), (*secret_values(given), *map(str, secrets))
    )
    return PendingFunction(run, (), None).with_timeout(timeout)


def resolve_variables(option: str, values: Mapping[str, str | None]) -> dict[str, str]:
    """Return variables with their values. For None, the value comes from this process's environment.

    Args:
        option: Name of the option that lists the variables, for errors.
        values: Values by name.

    Raises:
        UsageError: If a variable is not set.
    """
    found = {}
    for name, text in values.items():
        if text is None and (text := os.environ.get(name)) is None:
            raise UsageError(
                f"{option} {name}: this shell has no variable of that name. "
                + (f"Run export {name}=... first" if option == "--secret" else f"Write {option} {name}=VALUE")
            )
        found[name] = text
    return found


def _join_command(words: object) -> str:
    """Join words to one shell command, with quotes where necessary.

    Raises:
        UsageError: If ``words`` is not a list of words.
    """
    if isinstance(words, bytes | bytearray | Mapping) or not isinstance(words, Iterable):
        hint = ""
        if isinstance(words, bytes | bytearray):
            hint = ". Pass a str (.decode())"
        elif isinstance(words, os.PathLike):
            hint = ". Pass a list, [path]"
        kind = "None" if words is None else f"{type(words).__name__}"
        raise UsageError(f"the command must be a str or a list of words, got {kind}{hint}")
    found = []
    for number, word in enumerate(words, 1):
        if word is None or isinstance(word, bytes | bytearray):
            raise UsageError(f"word {number} of the command must be a str, got {type(word).__name__}: {word!r:.40}")
        found.append(_to_text(word))
    if found and not found[0].strip():
        raise UsageError("the first word of the command, its program, is empty")
    return shlex.join(found)


def _to_text(value: object) -> str:
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _program_name(text: str) -> str:
    """Return the name of the program that a command runs. The arguments are omitted, because they may be secret."""
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
    """Return a call that runs a whole script on each rank as its main program, with its own ``sys.argv``.

    ``sky.script("train.py", ["--epochs", 3]) @ pool`` runs on each rank what ``python train.py --epochs 3`` runs here.
    ``__name__`` is ``"__main__"``, ``__file__`` is the path of the node's copy, and imports find modules beside the
    script. The call returns None. It fails if the script raises or ends with a status other than 0. Each run uses new
    processes.

    Args:
        path: Script in the working folder of the pool, or the name of a module.
        args: Arguments of the script; values are converted to text.
        module: Whether to run ``path`` as ``python -m`` does.
        torchrun: Whether to set torchrun's variables (``RANK``, ``LOCAL_RANK``, ...) even for a single rank. If there
            are several ranks, they always have these variables.
        timeout: Time limit of one rank in seconds; None for no limit.

    Raises:
        ScriptError: If the script does not exist or does not parse.
        UsageError: If ``args`` is a str instead of a list.
        ValueError: If ``timeout`` is not positive.
    """
    if isinstance(args, str | bytes):
        raise UsageError(f"args must be a list, such as {args.split()!r}, not one str")
    words = [os.fspath(each) if isinstance(each, os.PathLike) else str(each) for each in args]
    if module:
        if not all(part.isidentifier() for part in str(path).split(".")):
            raise ScriptError(f"{path} is not a module name. Leave module=True out for a script")
        run = ScriptRunner(str(path), b"", words)
    else:
        from skyward_core.tasks.script_functions import parse_script

        file = Path(os.path.abspath(path))  # noqa: PTH100  keep the name of a link, as Python does
        parse_script(file)
        run = ScriptRunner(str(file), read_bytes(file), words)
        if not run.source:
            run.source = b"\n"  # a line end, because an empty source stands for a module instead of a script file
    run.torchrun = bool(torchrun)
    return PendingFunction(run, (), None).with_timeout(timeout)
