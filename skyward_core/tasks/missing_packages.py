"""Advice on how to install a package that a script needs."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from skyward_core.model.errors import DISTRIBUTIONS
from skyward_core.model.script_interpreter import Interpreter
from skyward_core.tasks.client_interpreter import is_own_environment

FRAMEWORKS = (
    "torch", "jax", "flax", "keras", "tensorflow", "transformers", "accelerate", "datasets", "sklearn", "joblib",
    "numpy", "pandas",
)  # fmt: skip
from_metadata = False
"""Whether this process runs in the environment created from a script's inline metadata."""


def is_missing(module: str) -> bool:
    """Check whether a top-level module cannot be found; nothing is imported."""
    return module not in sys.modules and find_spec(module) is None


def install_advice(module: str, interpreter: Interpreter | None = None) -> str:
    """Return how to install the package of a module, or how to request it.

    Args:
        interpreter: Interpreter that needs it; None for the one of this process.
    """
    package = DISTRIBUTIONS.get(module, module)
    if interpreter is not None and not is_own_environment(interpreter.prefix) and not interpreter.base:
        python = interpreter.path
        return f"{package} is not installed for {python}. Install it: {python} -m pip install {package}"
    if from_metadata or (interpreter is not None and interpreter.base):
        return f"add {package} to the dependencies in the script's inline metadata (# /// script)"
    return f"{package} is not installed for {sys.executable}. Install it: {_install_command(package)}"


def _install_command(package: str) -> str:
    prefix = Path(sys.prefix)  # both tools name the environment after the package
    if prefix.parent.parts[-2:] == ("uv", "tools"):
        return f"uv tool install {prefix.name} --with {package}"
    if prefix.parent.parts[-2:] == ("pipx", "venvs"):
        return f"pipx inject {prefix.name} {package}"
    if is_missing("pip"):
        return f"uv pip install --python {sys.executable} {package}"
    return f"{sys.executable} -m pip install {package}"
