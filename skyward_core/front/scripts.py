"""Scripts as a person names them: what is in them to run, what they need, and the task that comes of a call."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..model.errors import ScriptError, UsageError
from ..model.interpreter import Interpreter
from ..store.user_files import is_dir, is_file, resolved
from ..store.working_folder import current, workdir
from ..tasks.argument_fields import ArgumentField, argument_fields
from ..tasks.arguments import Text
from ..tasks.combinations import values_of
from ..tasks.inline_metadata import inline_metadata
from ..tasks.interpreter import OfferedPython, interpreter_of, offered
from ..tasks.known_pythons import NoPython, has, missing_in
from ..tasks.known_pythons import ask as asked_python
from ..tasks.known_pythons import read as known_python
from ..tasks.missing_packages import FRAMEWORKS, advice, is_missing
from ..tasks.packages.offered import OfferedPackages, offered_packages
from ..tasks.parsing import parsed
from ..tasks.scripts import (
    FunctionInfo,
    build_task,
    build_tasks,
    commands_of,
    find_function,
    has_functions,
    list_functions,
    parse,
    parse_arguments,
    split_target,
)
from ..tasks.stop import Stop
from ..tasks.task import Task

# Those whose ranks meet only through the plugin of that name.
GANG_FRAMEWORKS = ("torch", "jax")

__all__ = [
    "ArgumentField",
    "FunctionInfo",
    "Interpreter",
    "NoPython",
    "OfferedPackages",
    "OfferedPython",
    "Stop",
    "Task",
    "Text",
    "advice",
    "argument_fields",
    "asked_python",
    "build_task",
    "build_tasks",
    "commands_of",
    "find_function",
    "gang_frameworks_of",
    "has_functions",
    "has_own_block",
    "imports_of",
    "interpreter_of",
    "known_python",
    "lacking_here",
    "lacks",
    "list_functions",
    "missing_of",
    "offered",
    "packages_for",
    "parse_arguments",
    "parsed",
    "split_target",
    "values_of",
]


def packages_for(script: Path) -> list[OfferedPackages]:
    """The files of a script's project that say what its ranks could have, of each kind the nearest."""
    folder = workdir(script) or current()
    return [] if folder is None else offered_packages(script, Path(folder))


def has_own_block(script: Path) -> bool:
    """Whether a script says itself what it needs (PEP 723), be it in a way that cannot be used."""
    try:
        return inline_metadata(script) is not None
    except ScriptError:
        return True


def imports_of(script: Path) -> set[str]:
    """The top-level packages that a script imports anywhere.

    Raises:
        ScriptError: it cannot be read, or is no Python.
    """
    return _roots(ast.walk(parse(script)))


def _roots(nodes: Iterable[ast.AST]) -> set[str]:
    """The top-level packages that these import."""
    roots = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            roots.add((node.module or "").partition(".")[0])
    return roots


def missing_of(script: Path, interpreter: Interpreter | None = None) -> list[str]:
    """The frameworks that loading a script imports, and that its interpreter does not have; see :func:`advice`. None
    where there is no interpreter for it: whoever chooses one tells why.

    What only its functions import is not among them: their ranks have an environment, for which plugins see.

    Args:
        interpreter: None for the one that is chosen for it.

    Raises:
        ScriptError: it cannot be read, or is no Python.
    """
    needs = _roots(_run_at_load(parse(script)))
    try:
        interpreter = interpreter or interpreter_of(script)
    except (ScriptError, UsageError):
        return []
    return missing_in(interpreter, [name for name in FRAMEWORKS if name in needs])


def lacks(interpreter: Interpreter, module: str) -> bool:
    """Whether an interpreter has no such module, by running it; one whose environment is still to be made has none.

    Raises:
        ScriptError: it does not say; tells why.
    """
    return bool(interpreter.base) or not has(interpreter, module)


def lacking_here(script: Path, *, whole: bool) -> list[str]:
    """The packages that a script imports and that our own Python does not have, nor the script's folder or the current
    one; of one that is not run as a whole, those that it imports as it is loaded.

    Raises:
        ScriptError: it cannot be read, or is no Python.
    """
    tree = parse(script)
    names = _roots(ast.walk(tree) if whole else _run_at_load(tree)) - sys.stdlib_module_names - {""}
    folders = [each for each in (resolved(script).parent, current()) if each is not None]
    beside = {name for name in names for at in folders if is_dir(at / name) or is_file(at / f"{name}.py")}
    return sorted(filter(is_missing, names - beside))


def gang_frameworks_of(script: Path, *, whole: bool = False) -> list[str]:
    """The frameworks that a script imports and whose ranks meet only through the plugin of that name.

    Args:
        whole: whether it is run as a whole: one for PyTorch finds what it finds below torchrun.

    Raises:
        ScriptError: it cannot be read, or is no Python.
    """
    tree = parse(script)
    imported = _roots(ast.walk(tree))
    meets = whole or _meets(tree)
    return [name for name in GANG_FRAMEWORKS if name in imported and not (name == "torch" and meets)]


def _meets(module: ast.Module) -> bool:
    """Whether it makes the process group itself, for which ranks have what torchrun gives."""
    named = (
        each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in ast.walk(module)
    )
    return "init_process_group" in named


def _run_at_load(module: ast.Module) -> Iterator[ast.AST]:
    """All of a module but what stands in functions."""
    left: list[ast.AST] = [module]
    while left:
        node = left.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
            left += ast.iter_child_nodes(node)
