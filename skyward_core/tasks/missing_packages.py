"""What to install, and where, when a script needs a package that is not there."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from ..model.errors import ScriptError
from ..model.interpreter import Interpreter
from ..store.user_files import entries, found_by, is_dir, read_text
from ..wire.module_names import DISTRIBUTIONS
from .answers import Silence, answer
from .known_pythons import config_of
from .own_interpreter import is_own
from .packages.local_packages import local_packages

FRAMEWORKS = (
    "torch", "jax", "flax", "keras", "tensorflow", "transformers", "accelerate", "datasets", "sklearn", "joblib",
    "numpy", "pandas",
)  # fmt: skip
from_metadata = False
"""Whether this process runs in the environment that a script's inline metadata asks for."""

_FIND = "import sys; from importlib.util import find_spec; print(find_spec(sys.argv[1]) is not None)"
_SITES = ("lib/python3*/site-packages", "lib64/python3*/site-packages", "lib/python3/dist-packages",
          "local/lib/python3*/dist-packages")  # fmt: skip


def is_missing(module: str) -> bool:
    """Whether there is no top-level module of that name here; nothing is imported."""
    return module not in sys.modules and find_spec(module) is None


def missing_in(interpreter: Interpreter, modules: Sequence[str]) -> list[str]:
    """Return the modules of these that an interpreter does not have, by its folders of packages; nothing is run.

    None are missing if its environment is still to be made, or if it has no folders of packages that are known.
    """
    if is_own(interpreter.prefix):
        return [name for name in modules if is_missing(name)]
    path = list(_import_path(interpreter)) if modules and not interpreter.base else []
    return [name for name in modules if path and PathFinder.find_spec(name, path) is None]


def has(interpreter: Interpreter, module: str) -> bool:
    """Check whether an interpreter has a module, by running it: for launches alone.

    Raises:
        ScriptError: It does not answer.
    """
    if is_own(interpreter.prefix):
        return not is_missing(module)
    try:
        done = answer([interpreter.path, "-I", "-c", _FIND, module], ())
    except Silence as error:
        why = str(error)
    except OSError as error:
        why = f"it cannot be run: {error.strerror or error}"
    else:
        if not done.returncode:
            return b"True" in done.stdout
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        why = f"it ended with exit status {done.returncode}" + (f" ({last})" if last else "")
    raise ScriptError(f"Which packages {interpreter.path} has is not known: {why}")


def _import_path(interpreter: Interpreter) -> Iterator[str]:
    """Return the folders in which an interpreter finds packages, as files say."""
    prefix = Path(interpreter.prefix)
    sites = [site for pattern in _SITES for site in found_by(prefix, pattern)]
    config = config_of(interpreter.prefix)
    if config.get("include-system-site-packages") == "true":
        base = Path(config.get("home", "")).parent
        sites += [site for pattern in _SITES for site in found_by(base, pattern)]
    for site in sites:
        yield str(site)
        yield from _added(site)
    for package in local_packages({}, interpreter.prefix, interpreter.minor):
        yield package.entry


def _added(site: Path) -> Iterator[str]:
    """Return the folders that ``.pth`` files add; their lines of code are not run."""
    try:
        files = [each for each in entries(site) if each.suffix == ".pth"]
    except OSError:
        return
    for file in files:
        try:
            lines = read_text(file, errors="replace", most=1 << 16).splitlines()
        except OSError:
            continue
        yield from (str(site / line) for line in lines if line.strip() and is_dir(site / line))


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
