"""Alias module that makes ``import skyward`` work in a plain ``python script.py``, in an environment of the user's
choice.

Scripts that skyward-tui runs resolve the older name ``skyward`` themselves. Other scripts need a module file.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skyward_core.model.errors import UsageError
from skyward_core.tasks.bounded_subprocess import QueryTimeout, run_bounded
from skyward_core.tasks.import_path import ALIAS_FOLDER
from skyward_core.tasks.script_interpreter_and_environment import list_interpreters
from skyward_core.util.safe_file_access import write_atomic
from skyward_core.util.terminal_safe_text import sanitize_line

MARK = "# An alias of skyward_core: the command `shim install` wrote it, and `shim remove` takes it away.\n"
_INSPECT_SCRIPT = """
import sys
sys.path[:] = [each for each in sys.path if each]  # ignore modules of the current folder
import importlib.util, json, os, sysconfig
found = importlib.util.find_spec("skyward")
managed = sys.prefix == sys.base_prefix and os.path.exists(
    os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED"))
print(json.dumps({
    "site": sysconfig.get_path("purelib"), "managed": managed,
    "there": found and (found.origin or next(iter(found.submodule_search_locations), "")),
    "ours": importlib.util.find_spec("skyward_core") is not None,
}))
"""
INTERPRETER_TIMEOUT = 60  # seconds that an interpreter has to print its package folder


@dataclass(frozen=True)
class AliasModule:
    """Alias module of an environment.

    Attributes:
        path: Path of the module's file.
        python: Interpreter of the environment.
        changed: Whether the call wrote or removed the file.
    """

    path: Path
    python: str
    changed: bool


def install(python: str | None = None) -> AliasModule:
    """Write the file of the module ``skyward`` into the environment's package folder, unless the file exists.

    Args:
        python: Interpreter of the environment; None for the interpreter that runs scripts of the current folder.

    Raises:
        UsageError: If the interpreter does not answer, lacks skyward_core, belongs to the system, or has another
            skyward package. If its package folder cannot be written.
    """
    python, site, found = _inspect_interpreter(python)
    path = site / "skyward.py"
    if found["there"] and not (_is_ours(path) and Path(found["there"]) == path):
        raise UsageError(
            f"{python} has another package skyward, at {sanitize_line(found['there'])}, which takes precedence. "
            "Uninstall it first"
        )
    if _is_ours(path):
        return AliasModule(path, python, changed=False)
    if not found["ours"]:
        raise UsageError(f"{python} has no skyward_core, which the alias needs. Install this package there first")
    if found["managed"]:
        raise UsageError(f"{python} is managed by the operating system. Name another interpreter with --python")
    try:
        write_atomic(path, (MARK + (ALIAS_FOLDER / path.name).read_text(encoding="utf-8")).encode(), mode=0o644)
    except OSError as error:
        raise UsageError(f"{site} cannot be written: {error.strerror or error}") from error
    return AliasModule(path, python, changed=True)


def remove(python: str | None = None) -> AliasModule:
    """Remove the module file if skyward-tui wrote it.

    Args:
        python: As in :func:`install`.

    Raises:
        UsageError: If the interpreter does not answer, skyward-tui did not write the module, or it cannot be removed.
    """
    python, site, _ = _inspect_interpreter(python)
    path = site / "skyward.py"
    exists = path.exists()
    if exists and not _is_ours(path):
        raise UsageError(f"{path} was not written by this program and is not removed")
    try:
        if not exists:
            return AliasModule(path, python, changed=False)
        path.unlink()
        for compiled in site.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be removed: {error.strerror}") from error
    return AliasModule(path, python, changed=True)


def _inspect_interpreter(python: str | None) -> tuple[str, Path, dict[str, Any]]:
    if python is None:
        python = list_interpreters(Path.cwd() / "script.py", os.environ)[0].path
    try:
        answer = run_bounded([python, "-E", "-c", _INSPECT_SCRIPT], (), patience=INTERPRETER_TIMEOUT)
        if not answer.returncode:
            found: dict[str, Any] = json.loads(answer.stdout)
            return python, Path(found["site"]), found
        last = answer.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        reason = f"it exited with status {answer.returncode}{': ' * bool(last)}{last}"
    except OSError as error:
        reason = error.strerror or str(error)
    except QueryTimeout as error:
        reason = str(error)
    except (ValueError, KeyError):
        reason = "unexpected output; it may not be a Python interpreter"
    raise UsageError(f"Cannot find the packages of {sanitize_line(python)}: {sanitize_line(reason)}")


def _is_ours(path: Path) -> bool:
    try:
        return path.read_text(encoding="utf-8", errors="replace").startswith(MARK)
    except OSError:
        return False
