"""Packages that a script imports but its interpreter does not have, and advice on how to install them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from skyward_core.model.errors import DISTRIBUTIONS
from skyward_core.model.specs import Interpreter
from skyward_core.store.default_and_forbidden_working_folders import current_folder
from skyward_core.tasks.python_compatibility import is_own_environment
from skyward_core.tasks.script_functions import parse_script
from skyward_core.util.safe_file_access import is_dir, is_file, resolve_path

FRAMEWORKS = (
    "torch", "jax", "flax", "keras", "tensorflow", "transformers", "accelerate", "datasets", "sklearn", "joblib",
    "numpy", "pandas",
)  # fmt: skip
# Frameworks whose ranks connect only through the plugin of the same name.
GANG_FRAMEWORKS = ("torch", "jax")
# Whether this process runs in the environment created from a script's inline metadata.
from_metadata = False


def is_missing(module: str) -> bool:
    """Check whether a top-level module cannot be found. Imports nothing."""
    return module not in sys.modules and find_spec(module) is None


def install_advice(module: str, interpreter: Interpreter | None = None) -> str:
    """Return how to install the package that contains a module, or how to request it.

    Args:
        interpreter: Interpreter that needs the package; None for this process's interpreter.
    """
    package = DISTRIBUTIONS.get(module, module)
    if interpreter is not None and not is_own_environment(interpreter.prefix) and not interpreter.base:
        python = interpreter.path
        return f"{package} is not installed for {python}. Install it: {python} -m pip install {package}"
    if from_metadata or (interpreter is not None and interpreter.base):
        return f"add {package} to the dependencies in the script's inline metadata (# /// script)"
    return f"{package} is not installed for {sys.executable}. Install it: {_install_command(package)}"


def _install_command(package: str) -> str:
    prefix = Path(sys.prefix)  # uv and pipx name the environment of a tool after its package
    if prefix.parent.parts[-2:] == ("uv", "tools"):
        return f"uv tool install {prefix.name} --with {package}"
    if prefix.parent.parts[-2:] == ("pipx", "venvs"):
        return f"pipx inject {prefix.name} {package}"
    if is_missing("pip"):
        return f"uv pip install --python {sys.executable} {package}"
    return f"{sys.executable} -m pip install {package}"


def imported_frameworks(script: Path) -> list[str]:
    """Return the frameworks that a script imports while loading.

    Raises:
        ScriptError: If the script cannot be read, or is not Python.
    """
    imported = _imported_packages(_load_time_nodes(parse_script(script)))
    return [name for name in FRAMEWORKS if name in imported]


def missing_imports(script: Path, *, whole: bool) -> list[str]:
    """Return the packages that a script imports but that neither this program's Python, nor the script's folder, nor
    the current folder contains.

    Args:
        whole: Whether the script runs as a whole. Otherwise only imports while the script is loaded count.

    Raises:
        ScriptError: If the script cannot be read, or is not Python.
    """
    tree = parse_script(script)
    names = _imported_packages(ast.walk(tree) if whole else _load_time_nodes(tree)) - sys.stdlib_module_names - {""}
    folders = [each for each in (resolve_path(script).parent, current_folder()) if each is not None]
    beside = {name for name in names for at in folders if is_dir(at / name) or is_file(at / f"{name}.py")}
    return sorted(filter(is_missing, names - beside))


def find_gang_frameworks(script: Path, *, whole: bool = False) -> list[str]:
    """Return the frameworks that a script imports and whose ranks connect only through the plugin of the same name.

    Args:
        whole: Whether the script runs as a whole. PyTorch then finds the variables of torchrun and needs no plugin.

    Raises:
        ScriptError: If the script cannot be read, or is not Python.
    """
    tree = parse_script(script)
    imported = _imported_packages(ast.walk(tree))
    connects = whole or _makes_process_group(tree)
    return [name for name in GANG_FRAMEWORKS if name in imported and not (name == "torch" and connects)]


def _makes_process_group(module: ast.Module) -> bool:
    """Check whether a script creates the process group itself, for which it needs only the variables of torchrun."""
    named = (each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in ast.walk(module))
    return "init_process_group" in named


def _load_time_nodes(module: ast.Module) -> Iterator[ast.AST]:
    """Yield the syntax tree nodes of a module outside of functions, which are executed while it is loaded."""
    remaining: list[ast.AST] = [module]
    while remaining:
        node = remaining.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
            remaining += ast.iter_child_nodes(node)


def _imported_packages(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names of the top-level packages that import statements name."""
    roots = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            roots.add((node.module or "").partition(".")[0])
    return roots
