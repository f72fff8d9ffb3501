"""Loading of the main module, which ``python SCRIPT`` or ``python -m MODULE`` runs: a file, folder or archive."""

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
from skyward_core.tasks.script_inspection_and_form_fields import parse_script
from skyward_core.util.untrusted_files import is_dir, is_file, resolve_path


@dataclass(frozen=True)
class MainModule:
    """Code of a main module, with the attributes that Python gives it.

    Attributes:
        code: Compiled code.
        file: Absolute path of the code's file. For a member of an archive, a path inside the archive.
        argument: Value of ``sys.argv[0]``.
        folder: Entry to insert at the front of ``sys.path``; "" if the present entries are sufficient.
        spec: Import spec; None for a plain file.
    """

    code: CodeType
    file: str
    argument: str
    folder: str
    spec: ModuleSpec | None = None

    def make_module(self) -> ModuleType:
        """Return a new ``__main__`` module whose code has not run."""
        module = ModuleType("__main__")
        module.__file__ = self.file
        if (spec := self.spec) is not None:
            module.__spec__, module.__loader__, module.__package__ = spec, spec.loader, spec.parent
            vars(module)["__cached__"] = spec.cached
        return module


def load_main_from_path(path: Path) -> MainModule:
    """Return the main module that ``python PATH`` runs.

    Raises:
        ScriptError: If the path does not exist, cannot be read or does not parse.
    """
    is_archive = path.suffix != ".py" and is_file(path) and is_zipfile(path)
    if is_archive or (is_dir(path) and is_file(path / "__main__.py")):
        return _load_archive(path)
    tree = parse_script(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # parse_script has already compiled this code and shown the warnings
        code = compile(tree, str(path), "exec", dont_inherit=True)
    return MainModule(code, str(path.absolute()), str(path), str(resolve_path(path).parent))


def load_main_from_module(name: str) -> MainModule:
    """Return the main module that ``python -m NAME`` runs. Its parent packages are imported.

    Raises:
        UsageError: If the module does not exist.
        SyntaxError, ...: If a parent package raises during its import.
    """
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:  # a package runs its __main__
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # the package exists, but one of its own imports is missing
        spec = None
    except (ImportError, ValueError) as error:  # a relative name, or a submodule of a module that is not a package
        raise UsageError(f"no module {name} to run: {error}") from error
    if spec is None:
        raise UsageError(f"package {name} has no __main__ to run" if name in sys.modules else _no_module_message(name))
    return _load_spec(spec, str(spec.origin), "")


def _no_module_message(name: str) -> str:
    if name.endswith(".py"):
        return f"no module {name}: -m takes the name of a module. Leave -m out for a file"
    return f"no module {name} to run in {sys.path[0] or '.'} or among the installed packages"


def _load_archive(path: Path) -> MainModule:
    spec = PathFinder.find_spec("__main__", [str(path)])
    if spec is None:
        raise ScriptError(f"{path} is an archive without a __main__.py. Name a script")
    return _load_spec(spec, str(path), str(path))


def _load_spec(spec: ModuleSpec, argument: str, folder: str) -> MainModule:
    get_code = getattr(spec.loader, "get_code", None)
    code = None if get_code is None else get_code(spec.name)
    if code is None:
        raise UsageError(f"module {spec.name} is not Python code, so it cannot run as a script")
    return MainModule(code, str(spec.origin), argument, folder, spec)
