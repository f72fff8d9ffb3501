"""The plugins: ``sky.plugins.torch(...)`` and its like, those that other packages install, and the protocol.

Ours are the files in ``built_in/``, each with its class under ``PLUGIN``. Another package declares its own by an entry
point of the group ``skyward.plugins`` that names the class.

Nothing here is imported before it is asked for, as workers on nodes import this package too. The modules lie in a
package of their own because a package's submodule and its attribute share one name: importing a module ``torch``
would replace the plugin ``torch``.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

from skyward_core.model.errors import SkywardError, UsageError
from skyward_core.plugins.plugin import Plugin, PluginError, check_plugins

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from dataclasses import Field
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

GROUP = "skyward.plugins"  # entry points: name = "package.module:PluginClass"
_MODULES = {"shared": "shared_collections"}  # plugins whose file in ``built_in/`` has another name


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """A plugin that can be had.

    Attributes:
        name: how people name it.
        help: what it is for, in a line.
        parameters: what it can be given from Python, by name, and what that is.
    """

    name: str
    help: str
    parameters: Mapping[str, str] = field(default_factory=dict)


def available() -> list[PluginInfo]:
    """The plugins that come with this library, then those that other packages install, by name.

    One that cannot be had is listed, too, with why.
    """
    ours = [PluginInfo(found.name, found.help, _parameters(found)) for found in _built_in_classes()]
    return ours + [_describe_plugin(name, points) for name, points in sorted(_installed().items())]


def by_name(name: str, /, **given: Any) -> Plugin:
    """The plugin of that name, with its default parameters where none are given.

    Args:
        name: of a plugin that comes with this library, or that another package installs.
        **given: parameters of it.

    Raises:
        UsageError: there is none of that name, several packages declare it, or it cannot be made of these parameters.
        PluginError: an installed plugin cannot be imported or made.
    """
    made = factory(name)
    try:
        plugin = check_plugins([made(**given)])[0]
    except TypeError as error:
        raise UsageError(f"plugin {name} needs parameters ({_missing_parameters(made, given) or error})") from error
    except SkywardError:
        raise
    except Exception as error:  # one of another package may raise anything
        raise PluginError(f"plugin {name} cannot be made: {type(error).__name__}: {error}", name) from error
    if plugin.name != name:
        raise PluginError(f"plugin {name} ({made.__module__}) calls itself {plugin.name!r}", name)
    return plugin


def factory(name: str) -> Any:
    """What makes the plugin of that name.

    Args:
        name: of a plugin that comes with this library, or that another package installs.

    Raises:
        UsageError: there is none of that name, or several packages declare it.
        PluginError: an installed plugin cannot be imported.
    """
    if found := _built_in(name):
        return found
    installed = _installed()
    if points := installed.get(name):
        return _load(name, points)
    names = [*(found.name for found in _built_in_classes()), *installed]
    close = get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(names)}"
    raise UsageError(f"no plugin is named {name!r}; {hint}")


def _own_names() -> list[str]:
    from pkgutil import iter_modules

    from skyward_core.plugins import built_in

    names = {module: name for name, module in _MODULES.items()}
    return [names.get(found.name, found.name) for found in iter_modules(built_in.__path__)]


def _built_in_classes() -> list[type[Plugin]]:
    """The classes of those that come with this library, in the order of lists."""
    return sorted((_built_in(name) for name in _own_names()), key=lambda found: found.place)


def _built_in(name: str) -> Any:
    """The class of a plugin that comes with this library; None where it is none."""
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
    """What packages declare, by name; reading it takes as long as the rest of a start."""
    from skyward_core.model.plugin_and_provider_entry_points import load_entry_points

    return load_entry_points(GROUP, _own_names())


def _load(name: str, points: Sequence[EntryPoint]) -> Any:
    from skyward_core.model.plugin_and_provider_entry_points import resolve_entry_point

    point = resolve_entry_point("plugin", points)
    try:
        return point.load()
    except Exception as error:  # code of another package may raise anything
        raise PluginError(
            f"plugin {name} ({point.value}) cannot be imported: {type(error).__name__}: {error}", name
        ) from error


def _describe_plugin(name: str, points: Sequence[EntryPoint]) -> PluginInfo:
    """What an installed plugin is for, or why it cannot be had."""
    from skyward_core.model.plugin_and_provider_entry_points import describe_package

    try:
        found = _load(name, points)
    except SkywardError as error:
        return PluginInfo(name, str(error))
    said = found.help if isinstance(found, type) and issubclass(found, Plugin) else ""
    return PluginInfo(name, said or f"from {describe_package(points[0])}", _parameters(found))


def _parameters(made: Any) -> dict[str, str]:
    """The parameters of a plugin that is a dataclass, and what it says of each."""
    if not is_dataclass(made):
        return {}
    return {each.name: str(each.metadata.get("help", each.type)) for each in fields(made) if each.init}


def _missing_parameters(made: Any, given: Mapping[str, Any]) -> str:
    """The parameters that a plugin cannot do without and is not given, as it declares them."""
    told = _parameters(made)
    required = (each.name for each in (fields(made) if told else ()) if _is_required(each) and each.name not in given)
    return ", ".join(f"{name}: {told[name]}" for name in required)


def _is_required(field: Field[Any]) -> bool:
    return field.init and field.default is MISSING and field.default_factory is MISSING


def __getattr__(name: str) -> Any:
    if name in ("around_app", "around_client", "around_process"):  # by which older generations make plugins
        return getattr(import_module(f"{__name__}.plugin_builder"), name)
    found = _built_in(name.lower() if name[:1].isupper() else name)
    if found is not None and name not in (found.name, found.__name__):
        found = None
    if found is None:
        from skyward_core.model.older_api_arguments import raise_removed_name

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
