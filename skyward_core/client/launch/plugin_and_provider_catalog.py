"""Catalog of plugins and providers for a launch.

The app may not import ``tasks``, so this module also re-exports the names of ``tasks`` that the app needs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from typing import Any, get_origin

from skyward_core import plugins
from skyward_core.client.launch.parameter_form_fields import ArgumentField as ArgumentField
from skyward_core.client.launch.parameter_form_fields import argument_fields as argument_fields
from skyward_core.model.errors import SkywardError, UsageError, set_error_field
from skyward_core.model.provider_capability_protocols import Offers, costs_money
from skyward_core.model.provider_settings_schema import Setting, declared_settings
from skyward_core.model.specs import Interpreter as Interpreter
from skyward_core.plugins import PluginInfo as PluginInfo
from skyward_core.plugins import factory
from skyward_core.providers import DEFAULT_PROVIDER as DEFAULT_PROVIDER
from skyward_core.providers import provider_class as provider_by_name
from skyward_core.providers import provider_names
from skyward_core.tasks.argument_parsing_and_sweeps import RawArgument as RawArgument
from skyward_core.tasks.argument_parsing_and_sweeps import argument_values as argument_values
from skyward_core.tasks.bounded_subprocess import CancellationToken as CancellationToken
from skyward_core.tasks.missing_packages import find_gang_frameworks as find_gang_frameworks
from skyward_core.tasks.missing_packages import install_advice as install_advice
from skyward_core.tasks.packages.image_packages_from_file import packages_for as packages_for
from skyward_core.tasks.packages.inline_metadata import has_own_block as has_own_block
from skyward_core.tasks.parameter_types_from_source import parse_source as parse_source
from skyward_core.tasks.pickled_calls_and_blobs import Task as Task
from skyward_core.tasks.script_functions import MAX_SCRIPT_BYTES as MAX_SCRIPT_BYTES
from skyward_core.tasks.script_functions import FunctionInfo as FunctionInfo
from skyward_core.tasks.script_functions import Param, parse_arguments
from skyward_core.tasks.script_functions import ScriptWatch as ScriptWatch
from skyward_core.tasks.script_functions import find_function as find_function
from skyward_core.tasks.script_functions import has_functions as has_functions
from skyward_core.tasks.script_functions import list_commands as list_commands
from skyward_core.tasks.script_functions import list_functions as list_functions
from skyward_core.tasks.script_functions import split_target as split_target
from skyward_core.tasks.script_interpreter_and_environment import InterpreterOption as InterpreterOption
from skyward_core.tasks.script_interpreter_and_environment import UnusablePython as UnusablePython
from skyward_core.tasks.script_interpreter_and_environment import choose_interpreter as choose_interpreter
from skyward_core.tasks.script_interpreter_and_environment import lacks_module as lacks_module
from skyward_core.tasks.script_interpreter_and_environment import list_interpreters as list_interpreters
from skyward_core.tasks.script_interpreter_and_environment import missing_frameworks as missing_frameworks
from skyward_core.tasks.script_interpreter_and_environment import query_python as query_python
from skyward_core.tasks.script_interpreter_and_environment import read_python as read_python

available_plugins = plugins.available


def parameter_fields(names: Iterable[str]) -> list[ArgumentField]:
    """Return a form field for each parameter of plugins; unavailable plugins have none.

    Args:
        names: Names of the plugins.
    """
    return [field for name in names for field in _plugin_fields(name)]


def parse_parameters(names: Sequence[str], texts: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Parse the texts of plugin parameters. Return their values by plugin and parameter name.

    Args:
        names: Plugins of the launch.
        texts: Texts by parameter, such as "torch.backend".

    Raises:
        UsageError: If a text names another plugin or an unknown parameter, or does not match the parameter's type.
        PluginError: If an installed plugin cannot be imported.
    """
    given: dict[str, list[str]] = {}
    for key, text in texts.items():
        name, _, parameter = key.rpartition(".")
        with set_error_field("plugin_settings"):
            if name not in names:
                plugins = ", ".join(names) if names else "none"
                raise UsageError(f"{key} is not a parameter of a plugin of this launch ({plugins})")
        given.setdefault(name, []).append(f"{parameter}={text}")
    return {name: _parse_plugin_parameters(name, pairs) for name, pairs in given.items()}


def _parse_plugin_parameters(name: str, pairs: Sequence[str]) -> dict[str, Any]:
    made = factory(name)
    with set_error_field("plugin_settings"):
        secret = {each.name for each in _init_fields(made) if not each.repr}
        for pair in pairs:
            if (parameter := pair.partition("=")[0]) in secret:
                raise UsageError(
                    f"{parameter} of plugin {name} is a secret, and launches are saved. Set it in a Python script"
                )
        try:
            values = parse_arguments(_as_function(name, made), pairs)
        except UsageError as error:
            # Name the field with the plugin's parameters instead of the function's arguments.
            error.field = "plugin_settings"
            raise
        for parameter, value in values.items():
            if isinstance(value, RawArgument):
                raise UsageError(
                    f"{parameter} of plugin {name} has a type that cannot be given as text. Set it in a Python script"
                )
    return values


def _plugin_fields(name: str) -> Iterator[ArgumentField]:
    try:
        made = factory(name)
    except SkywardError:  # an unavailable plugin has no fields; the plan of the launch reports it
        return
    helps = {each.name: str(each.metadata.get("help", "")) for each in _init_fields(made)}
    for found in argument_fields(_as_function(name, made)):
        yield replace(found, name=f"{name}.{found.name}", help=helps[found.name])


def _as_function(name: str, made: Any) -> FunctionInfo:
    """Describe a plugin's class as a function, to reuse the code that parses and shows a function's parameters."""
    params = tuple(map(_to_param, (each for each in _init_fields(made) if each.repr)))
    module = vars(sys.modules[made.__module__]) if params else {}
    types = {alias: kind for alias, kind in module.items() if get_origin(kind) is not None}
    return FunctionInfo(
        name=f"plugin {name}", params=params, doc="", line=0, is_generator=False, timeout=None, types=types
    )


def _init_fields(made: Any) -> list[Field[Any]]:
    return [each for each in fields(made) if each.init] if is_dataclass(made) else []


def _to_param(each: Field[Any]) -> Param:
    if each.default is not MISSING:
        default: str | None = repr(each.default)
    else:
        default = None if each.default_factory is MISSING else repr(each.default_factory())
    annotation = each.type if isinstance(each.type, str) else getattr(each.type, "__name__", str(each.type))
    return Param(each.name, annotation, default, required=default is None, kind="keyword")


@dataclass(frozen=True, slots=True)
class ProviderInfo:
    """Description of a provider for forms.

    Attributes:
        name: Name of the provider.
        about: Short description; "" if the provider is unavailable.
        settings: Settings that the user can change.
        chooses: Whether the user can choose among offers (markets, prices, regions).
        costs: Whether its machines may cost money.
    """

    name: str
    about: str = ""
    settings: Sequence[Setting] = ()
    chooses: bool = False
    costs: bool = False

    @property
    def label(self) -> str:
        """Name and description of the provider."""
        return f"{self.name}: {self.about}" if self.about else self.name

    @property
    def has_named_machines(self) -> bool:
        """Whether a setting lists machines by name, which fixes their number."""
        return any(setting.names_machines for setting in self.settings)


def available() -> list[ProviderInfo]:
    """Return the built-in providers, then those of other packages sorted by name. Includes unavailable providers."""
    return [_info(name) for name in provider_names()]


def _info(name: str) -> ProviderInfo:
    try:
        found = provider_by_name(name)
    except SkywardError:  # an unavailable provider is listed by name only; the plan of a launch on it reports the error
        return ProviderInfo(name)
    return ProviderInfo(name, found.about, declared_settings(found), isinstance(found, Offers), costs_money(found))
