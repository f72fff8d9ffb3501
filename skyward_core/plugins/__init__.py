"""Plugins: ``sky.plugins.torch(...)`` and others, plugins of installed packages, and the plugin protocol.

Built-in plugins are the files in ``built_in/``, each with its class under ``PLUGIN``. Other packages declare plugins
with entry points of the group ``skyward.plugins`` that name the class.

Plugins are imported at first use, because workers on nodes import this package too. The modules are in a subpackage,
because a submodule and an attribute of a package share one name: importing a submodule ``torch`` would replace the
plugin ``torch``.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

from skyward_core.model.errors import SkywardError, UsageError
from skyward_core.plugins.plugin import Plugin, PluginError, check_plugins

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from importlib.metadata import EntryPoint

    from skyward_core.plugins.built_in.accelerate import Accelerate as accelerate
    from skyward_core.plugins.built_in.dask import Dask as dask
    from skyward_core.plugins.built_in.deepspeed import Deepspeed as deepspeed
    from skyward_core.plugins.built_in.huggingface import HuggingFace as huggingface
    from skyward_core.plugins.built_in.jax import Jax as jax
    from skyward_core.plugins.built_in.joblib import Joblib as joblib
    from skyward_core.plugins.built_in.keras import Keras as keras
    from skyward_core.plugins.built_in.mig import Mig as mig
    from skyward_core.plugins.built_in.mpi import Mpi as mpi
    from skyward_core.plugins.built_in.ray import Ray as ray
    from skyward_core.plugins.built_in.shared_collections import Shared as shared
    from skyward_core.plugins.built_in.sklearn import Sklearn as sklearn
    from skyward_core.plugins.built_in.tensorflow import TensorFlow as tensorflow
    from skyward_core.plugins.built_in.torch import Torch as torch
    from skyward_core.plugins.plugin_builder import around_app as around_app
    from skyward_core.plugins.plugin_builder import around_client as around_client
    from skyward_core.plugins.plugin_builder import around_process as around_process

GROUP = "skyward.plugins"  # group of entry points that declare plugins: name = "package.module:PluginClass"
_MODULES = {"shared": "shared_collections"}  # plugins whose file in ``built_in/`` has another name


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """Description of an available plugin.

    Attributes:
        name: Name of the plugin.
        help: Purpose in one line.
        parameters: Description of each Python parameter, by name.
    """

    name: str
    help: str
    parameters: Mapping[str, str] = field(default_factory=dict)


def available() -> list[PluginInfo]:
    """Return the built-in plugins, then plugins of installed packages by name.

    An unusable plugin is included, with the reason as its ``help``.
    """
    ours = [PluginInfo(found.name, found.help, _parameters(found)) for found in _built_in_classes()]
    return ours + [_describe_plugin(name, points) for name, points in sorted(_installed().items())]


def by_name(name: str, /, **given: Any) -> Plugin:
    """Return a plugin by name, with default parameters unless given.

    Args:
        name: Name of a built-in plugin, or of one that an installed package declares.
        **given: Parameters of the plugin.

    Raises:
        UsageError: If the plugin does not exist, if several packages declare it, or if the parameters are invalid.
        PluginError: If an installed plugin cannot be imported or created.
    """
    made = factory(name)
    try:
        plugin = check_plugins([made(**given)])[0]
    except TypeError as error:
        raise UsageError(f"plugin {name} requires parameters: {_missing_parameters(made, given) or error}") from error
    except SkywardError:
        raise
    except Exception as error:  # any exception, because the plugin's package is foreign code
        raise PluginError(f"plugin {name} cannot be created: {type(error).__name__}: {error}", name) from error
    if plugin.name != name:
        raise PluginError(f"plugin {name} ({made.__module__}) has another name: {plugin.name!r}", name)
    return plugin


def factory(name: str) -> Any:
    """Return the class or factory of a plugin.

    Args:
        name: Name of a built-in plugin, or of one that an installed package declares.

    Raises:
        UsageError: If the plugin does not exist, or if several packages declare it.
        PluginError: If an installed plugin cannot be imported.
    """
    if found := _built_in(name):
        return found
    installed = _installed()
    if points := installed.get(name):
        return _load(name, points)
    names = [*(found.name for found in _built_in_classes()), *installed]
    close = get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]}?" if close else f"available: {', '.join(names)}."
    raise UsageError(
        f"unknown plugin {name!r}; {hint} A plugin of your own needs an entry point in an installed package"
    )


def _own_names() -> list[str]:
    from pkgutil import iter_modules

    from skyward_core.plugins import built_in

    names = {module: name for name, module in _MODULES.items()}
    return [names.get(found.name, found.name) for found in iter_modules(built_in.__path__)]


def _built_in_classes() -> list[type[Plugin]]:
    """Return the classes of built-in plugins in display order."""
    return sorted((_built_in(name) for name in _own_names()), key=lambda found: found.place)


def _built_in(name: str) -> Any:
    """Return the class of a built-in plugin, or None."""
    if not name.isidentifier() or name.startswith("_") or name in _MODULES.values():
        return None
    module = f"{__name__}.built_in.{_MODULES.get(name, name)}"
    try:
        return import_module(module).PLUGIN
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return None


def _installed() -> dict[str, list[EntryPoint]]:
    """Return the entry points of installed plugins by name. Called only if needed, because reading entry points doubles
    the time of a start.
    """
    from skyward_core.model.plugin_and_provider_entry_points import load_entry_points

    return load_entry_points(GROUP, _own_names())


def _load(name: str, points: Sequence[EntryPoint]) -> Any:
    from skyward_core.model.plugin_and_provider_entry_points import resolve_entry_point

    point = resolve_entry_point("plugin", points)
    try:
        return point.load()
    except Exception as error:  # any exception, because the plugin's package is foreign code
        raise PluginError(
            f"plugin {name} ({point.value}) cannot be imported: {type(error).__name__}: {error}", name
        ) from error


def _describe_plugin(name: str, points: Sequence[EntryPoint]) -> PluginInfo:
    """Return the description of an installed plugin, or the reason why it is unusable."""
    from skyward_core.model.plugin_and_provider_entry_points import describe_package

    try:
        found = _load(name, points)
    except SkywardError as error:
        return PluginInfo(name, str(error))
    text = found.help if isinstance(found, type) and issubclass(found, Plugin) else ""
    return PluginInfo(name, text or f"from {describe_package(points[0])}", _parameters(found))


def _parameters(made: Any) -> dict[str, str]:
    """Return the parameters of a dataclass plugin with their descriptions."""
    if not is_dataclass(made):
        return {}
    return {each.name: str(each.metadata.get("help", each.type)) for each in fields(made) if each.init}


def _missing_parameters(made: Any, given: Mapping[str, Any]) -> str:
    """Return the missing required parameters of a plugin with their descriptions."""
    descriptions = _parameters(made)
    required = (
        each.name for each in (fields(made) if descriptions else ()) if _is_required(each) and each.name not in given
    )
    return ", ".join(f"{name}: {descriptions[name]}" for name in required)


def _is_required(field: Field[Any]) -> bool:
    return field.init and field.default is MISSING and field.default_factory is MISSING


def __getattr__(name: str) -> Any:
    if name in ("around_app", "around_client", "around_process"):  # names that scripts for older API versions import
        return getattr(import_module(f"{__name__}.plugin_builder"), name)
    found = _built_in(name.lower() if name[:1].isupper() else name)
    if found is not None and name not in (found.name, found.__name__):
        found = None
    if found is None:
        from skyward_core.model.deprecated_and_unknown_arguments import raise_removed_name

        raise_removed_name(__name__, name, plugin=True)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*globals(), *_own_names()]


__all__ = [
    "Plugin",
    "PluginError",
    "PluginInfo",
    "accelerate",
    "available",
    "by_name",
    "check_plugins",
    "dask",
    "deepspeed",
    "factory",
    "huggingface",
    "jax",
    "joblib",
    "keras",
    "mig",
    "mpi",
    "ray",
    "shared",
    "sklearn",
    "tensorflow",
    "torch",
]
