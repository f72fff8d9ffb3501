"""The plugins: ``sky.plugins.torch(...)`` and its like, those that other packages install, and the protocol.

Nothing here is imported before it is asked for, as workers on nodes import this package too. The modules lie in a
package of their own because a package's submodule and its attribute share one name: importing a module ``torch``
would replace the plugin ``torch``.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..model.errors import UsageError
from .base import Plugin, PluginError, check_plugins

if TYPE_CHECKING:
    from .built_in.accelerate import Accelerate as accelerate
    from .built_in.huggingface import HuggingFace as huggingface
    from .built_in.jax import Jax as jax
    from .built_in.joblib import Joblib as joblib
    from .built_in.joblib import Sklearn as sklearn
    from .built_in.keras import Keras as keras
    from .built_in.mig import Mig as mig
    from .built_in.tensorflow import TensorFlow as tensorflow
    from .built_in.torch import Torch as torch

GROUP = "skyward.plugins"  # entry points: name = "package.module:PluginClass"

_BUILT_IN = {
    "torch": (".built_in.torch", "Torch", "PyTorch, with a process group across all ranks"),
    "jax": (".built_in.jax", "Jax", "JAX, with every device of the pool in one mesh"),
    "keras": (".built_in.keras", "Keras", "Keras 3 on JAX, PyTorch or TensorFlow"),
    "tensorflow": (
        ".built_in.tensorflow",
        "TensorFlow",
        "TensorFlow, with TF_CONFIG for MultiWorkerMirroredStrategy",
    ),
    "huggingface": (
        ".built_in.huggingface",
        "HuggingFace",
        "transformers, datasets and tokenizers, token and models",
    ),
    "accelerate": (".built_in.accelerate", "Accelerate", "Hugging Face Accelerate, with FSDP or DeepSpeed"),
    "mig": (".built_in.mig", "Mig", "GPUs cut into MIG slices, one per rank"),
    "joblib": (".built_in.joblib", "Joblib", "joblib.Parallel runs on the pool"),
    "sklearn": (".built_in.joblib", "Sklearn", "scikit-learn runs on the pool"),
}


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """A plugin that can be had.

    Attributes:
        name: how people name it.
        help: what it is for, in a line.
    """

    name: str
    help: str


def available() -> list[PluginInfo]:
    """The plugins that come with this library, then those that other packages install, by name."""
    built_in = [PluginInfo(name, text) for name, (_, _, text) in _BUILT_IN.items()]
    others = [
        PluginInfo(name, f"from {point.dist.name if point.dist else point.value}")
        for name, point in sorted(_installed().items())
    ]
    return built_in + others


def by_name(name: str) -> Plugin:
    """The plugin of that name, with its default parameters.

    Args:
        name: of a plugin that comes with this library, or that another package installs.

    Raises:
        UsageError: there is none of that name, or it cannot be made without parameters.
        PluginError: an installed plugin cannot be imported.
    """
    made = _factory(name)
    try:
        plugin = made()
    except TypeError as error:
        raise UsageError(f"plugin {name} needs parameters ({error}); use it from Python") from error
    return check_plugins([plugin])[0]


def _factory(name: str) -> Any:
    if name in _BUILT_IN:
        return __getattr__(name)
    installed = _installed()
    if point := installed.get(name):
        try:
            return point.load()
        except (ImportError, AttributeError) as error:
            raise PluginError(f"plugin {name} ({point.value}) cannot be imported: {error}", name) from error
    names = [*_BUILT_IN, *installed]
    close = get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(names)}"
    raise UsageError(f"no plugin is named {name!r}; {hint}")


def _installed() -> dict[str, Any]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP) if point.name not in _BUILT_IN}


def __getattr__(name: str) -> Any:
    if name not in _BUILT_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute, _ = _BUILT_IN[name]
    found = globals()[name] = getattr(import_module(module, __name__), attribute)
    return found


def __dir__() -> list[str]:
    return [*globals(), *_BUILT_IN]


__all__ = [
    "Plugin",
    "PluginError",
    "PluginInfo",
    "accelerate",
    "available",
    "by_name",
    "check_plugins",
    "huggingface",
    "jax",
    "joblib",
    "keras",
    "mig",
    "sklearn",
    "tensorflow",
    "torch",
]
