"""What ``python SCRIPT`` and ``python -m MODULE`` run as ``__main__``: a file, a module, a folder or an archive."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, ModuleType
from zipfile import is_zipfile

from skyward_core.model.errors import ScriptError, UsageError
from skyward_core.tasks.script_inspection import parse_script
from skyward_core.util.user_files import is_dir, is_file, resolve_path


@dataclass(frozen=True)
class MainModule:
    """What is run.

    Attributes:
        code: of it.
        file: its file, absolute; within an archive for what lies in one.
        argument: what it finds as ``sys.argv[0]``.
        folder: what its imports are looked for in first; "" for where they are looked for already.
        spec: what imports know of it; None of a file.
    """

    code: CodeType
    file: str
    argument: str
    folder: str
    spec: ModuleSpec | None = None

    def make_module(self) -> ModuleType:
        """The module, whose code has not run."""
        module = ModuleType("__main__")
        module.__file__ = self.file
        if (spec := self.spec) is not None:
            module.__spec__, module.__loader__, module.__package__ = spec, spec.loader, spec.parent
            vars(module)["__cached__"] = spec.cached
        return module


def load_main_from_path(path: Path) -> MainModule:
    """What ``python PATH`` runs.

    Raises:
        ScriptError: there is none, it cannot be read, or it does not parse.
    """
    is_archive = path.suffix != ".py" and is_file(path) and is_zipfile(path)
    if is_archive or (is_dir(path) and is_file(path / "__main__.py")):
        return _load_archive(path)
    tree = parse_script(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # parse has compiled it once already
        code = compile(tree, str(path), "exec", dont_inherit=True)
    return MainModule(code, str(path.absolute()), str(path), str(resolve_path(path).parent))


def load_main_from_module(name: str) -> MainModule:
    """What ``python -m NAME`` runs, looked for as that does; packages above it are imported.

    Raises:
        UsageError: there is none.
        SyntaxError, ...: whatever a package above it raises as it is imported.
    """
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:  # a package: what is in it for that
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # of what it imports itself
        spec = None
    except (ImportError, ValueError) as error:  # a relative name, or one of a module that is none of its own
        raise UsageError(f"there is no module {name} to run: {error}") from error
    if spec is None:
        raise UsageError(f"package {name} has no __main__ to run" if name in sys.modules else _no_module_message(name))
    return _load_spec(spec, str(spec.origin), "")


def _no_module_message(name: str) -> str:
    if name.endswith(".py"):
        return f"there is no module {name}: -m takes a module's name, and a file stands without -m"
    return f"there is no module {name} to run, looked for in {sys.path[0] or '.'} and where packages are"


def _load_archive(path: Path) -> MainModule:
    spec = PathFinder.find_spec("__main__", [str(path)])
    if spec is None:
        raise ScriptError(f"{path} is an archive without a __main__.py: name a script")
    return _load_spec(spec, str(path), str(path))


def _load_spec(spec: ModuleSpec, argument: str, folder: str) -> MainModule:
    get_code = getattr(spec.loader, "get_code", None)
    code = None if get_code is None else get_code(spec.name)
    if code is None:
        raise UsageError(f"module {spec.name} is no Python code that can be run as a script")
    return MainModule(code, str(spec.origin), argument, folder, spec)
