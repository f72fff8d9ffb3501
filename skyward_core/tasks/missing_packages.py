"""What to install, and where, when a script needs a package that is not there."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from ..model.errors import ScriptError
from ..model.interpreter import Interpreter
from ..wire.module_names import DISTRIBUTIONS
from .answers import Silence, answer
from .own_interpreter import is_own

FRAMEWORKS = (
    "torch", "jax", "flax", "keras", "tensorflow", "transformers", "accelerate", "datasets", "sklearn", "joblib",
    "numpy", "pandas",
)  # fmt: skip
from_metadata = False
"""Whether this process runs in the environment that a script's inline metadata asks for."""

_FIND = "import sys; from importlib.util import find_spec; print(*(n for n in sys.argv[1:] if find_spec(n) is None))"


def is_missing(module: str) -> bool:
    """Whether there is no top-level module of that name here; nothing is imported."""
    return module not in sys.modules and find_spec(module) is None


def missing_in(interpreter: Interpreter, modules: Sequence[str]) -> list[str]:
    """The modules of these that an interpreter does not have; none where its environment is still to be made.

    Raises:
        ScriptError: it does not say; tells why.
    """
    if is_own(interpreter.prefix):
        return [name for name in modules if is_missing(name)]
    if not modules or not Path(interpreter.path).exists():
        return []
    return [
        name for name in modules if name in _missing(interpreter.path, tuple(modules), _stamp(interpreter))
    ]


@lru_cache(maxsize=32)  # a form asks as often as somebody types
def _missing(python: str, modules: tuple[str, ...], installed_at: tuple[int, ...]) -> frozenset[str]:
    try:
        done = answer([python, "-I", "-c", _FIND, *modules], installed_at)
    except Silence as error:
        why = str(error)
    except OSError as error:
        why = f"it cannot be run: {error.strerror or error}"
    else:
        if not done.returncode:
            return frozenset(done.stdout.decode(errors="replace").split())
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        why = f"it ended with exit status {done.returncode}" + (f" ({last})" if last else "")
    raise ScriptError(f"Which packages {python} has is not known: {why}")


def _stamp(interpreter: Interpreter) -> tuple[int, ...]:
    """What changes as soon as something is installed there."""
    return tuple(
        path.stat().st_mtime_ns for path in Path(interpreter.prefix).glob("lib/python3*/site-packages")
    )


def advice(module: str, interpreter: Interpreter | None = None) -> str:
    """How to install what has that module, or ask for it there.

    Args:
        interpreter: where it is wanted; None for this process.
    """
    package = DISTRIBUTIONS.get(module, module)
    if interpreter is not None and not is_own(interpreter.prefix) and not interpreter.base:
        python = interpreter.path
        return f"{package} is not installed for {python}; install it there: {python} -m pip install {package}"
    if from_metadata or (interpreter is not None and interpreter.base):
        return f"add {package} to the dependencies in the script's inline metadata (# /// script)"
    return f"{package} is not installed for {sys.executable}; install it there: {_command(package)}"


def _command(package: str) -> str:
    prefix = Path(sys.prefix)  # both tools call a program's environment as its package
    if prefix.parent.parts[-2:] == ("uv", "tools"):
        return f"uv tool install {prefix.name} --with {package}"
    if prefix.parent.parts[-2:] == ("pipx", "venvs"):
        return f"pipx inject {prefix.name} {package}"
    if is_missing("pip"):
        return f"uv pip install --python {sys.executable} {package}"
    return f"{sys.executable} -m pip install {package}"
