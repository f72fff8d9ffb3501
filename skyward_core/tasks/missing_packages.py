"""What to install, and where, when a script needs a package that is not there."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

FRAMEWORKS = (
    "torch", "jax", "flax", "keras", "tensorflow", "transformers", "accelerate", "datasets", "sklearn", "joblib",
    "numpy", "pandas",
)  # fmt: skip
_DISTRIBUTIONS = {"sklearn": "scikit-learn", "PIL": "pillow", "cv2": "opencv-python", "yaml": "pyyaml"}


def is_missing(module: str) -> bool:
    """Whether there is no top-level module of that name here; nothing is imported."""
    return module not in sys.modules and find_spec(module) is None


def advice(module: str) -> str:
    """How to install what has that module where scripts are loaded: in the environment of this program."""
    package = _DISTRIBUTIONS.get(module, module)
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
