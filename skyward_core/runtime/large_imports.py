"""Large libraries are loaded without looking for garbage among them: ``import torch`` takes a third less."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Those whose import takes more than a tenth of a second, and what is often imported before them.
LARGE = frozenset((
    "accelerate", "datasets", "diffusers", "flax", "jax", "keras", "lightning", "numpy", "pandas", "peft", "pyarrow",
    "pytorch_lightning", "scipy", "sklearn", "sympy", "tensorflow", "torch", "torchaudio", "torchvision",
    "transformers",
))  # fmt: skip


def install() -> None:
    """Load them so from now on, whoever imports them; idempotent."""
    if not any(isinstance(finder, _LargeFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _LargeFinder())
        atexit.register(_thaw_late)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Import in here what is large and stays: nobody looks for garbage among it, neither now nor later.

    Else Python goes through all that there is again and again while it grows, and thrice more where it ends. What is
    garbage already goes first, for what is here at the end is never looked at again. Who has switched the search off
    has it as it was.
    """
    if not gc.isenabled():
        yield
        return
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


# The last collections of an interpreter's shutdown must find what was frozen: files in cycles still hold unwritten
# data. The first collection only serves objects that were garbage before, and takes a tenth of a second for torch.
def _thaw_late() -> None:
    if gc.isenabled():
        gc.callbacks.append(_thaw)
    else:
        gc.unfreeze()


def _thaw(phase: str, info: object) -> None:
    if phase == "stop":
        gc.unfreeze()


class _LargeFinder:
    """Finds what the finders behind it find, and sees to how it is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in LARGE or not gc.isenabled():
            return None  # within another's import the search is off already
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            if spec := finder.find_spec(fullname, path, target):
                _quieten(spec.loader)
                return spec
        return None


def _quieten(loader: Any) -> None:
    own = getattr(loader, "__dict__", {})
    # One loader may be there for many modules, as that of a zip file is, and be asked for without being used.
    if "exec_module" in own or not hasattr(loader, "exec_module"):
        return
    run: Callable[[ModuleType], None] = loader.exec_module

    def load(module: ModuleType) -> None:
        own.pop("exec_module", None)  # once: it is the loader's own again
        with undisturbed():
            run(module)

    try:
        loader.exec_module = load
    except AttributeError:
        return  # one that nothing can be added to loads as it always does
