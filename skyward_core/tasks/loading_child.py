"""The process that loads a script: its command line, by interpreter, and how it is told what to do."""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

from ..model.interpreter import Interpreter
from .own_interpreter import is_own
from .stop import Stop

# What is appended can shadow nothing; what comes first is our package alone.
_OWN = "import sys; sys.path.append({0!r}); "
_OTHER = "import sys; sys.path.insert(0, {0!r}); sys.path.append({1!r}); "
_MAIN = "from skyward_core.tasks.loader import main; main(sys.argv[1])"


def child_of(interpreter: Interpreter, said: Callable[[str], None], stop: Stop) -> list[str]:
    """The command line that loads scripts, but for the folder of the request. An environment is made first.

    Args:
        said: takes lines that tell how long that goes on.
        stop: ends it.

    Raises:
        PoolError: the environment cannot be made.
        Cancelled: it was to stop.
    """
    if is_own(interpreter.prefix):
        python, before = sys.executable, _OWN.format(str(Path(__file__).resolve().parents[2]))
    else:
        from .environments import have  # the person's own interpreter needs none of it
        from .own_packages import own_packages

        have(interpreter, said, stop)
        ours = own_packages()
        python, before = interpreter.path, _OTHER.format(ours.first, ours.last)
    # -P and the path given by hand: nothing in the working folder can shadow what the loader itself imports.
    return [python, "-P", "-c", before + _MAIN]


def told_of(interpreter: Interpreter) -> list[str]:
    """What a person should know of the interpreter that a script is loaded with."""
    return [*interpreter.notes, *([] if is_own(interpreter.prefix) else [f"interpreter: {interpreter}"])]


def request_of(value: Any) -> bytes:
    """A value pickled so that another version of Python can load it.

    Raises:
        PicklingError, TypeError, AttributeError: it cannot be pickled.
    """
    written = io.BytesIO()
    _RequestPickler(written, protocol=5).dump(value)
    return written.getvalue()


class _RequestPickler(pickle.Pickler):
    """Paths are found by the name that every version has: pickle writes down where a version defines them."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, PurePath) and type(value).__module__.partition(".")[0] == "pathlib":
            return _Named("pathlib", type(value).__name__), (str(value),)
        return NotImplemented


class _Named:
    """A class, by module and name; what it is where it is loaded."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self, *values: Any) -> Any:
        return getattr(importlib.import_module(self.module), self.name)(*values)

    def __reduce__(self) -> Any:
        return getattr, (_Module(self.module), self.name)


class _Module:
    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> Any:
        return importlib.import_module, (self.name,)
