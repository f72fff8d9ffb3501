"""What plugins declare of themselves, for whoever offers them, and what a person wrote for their parameters.

A parameter is called ``PLUGIN.NAME`` here. One that is a secret (a dataclass's field that its ``repr`` leaves out) is
taken from Python only: what a person writes is kept, and shown, as it was written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from typing import Any, get_origin

from ..model.errors import SkywardError, UsageError
from ..model.wrong_field import of_field
from ..plugins import PluginInfo, available, by_name, factory
from ..tasks.argument_fields import ArgumentField, argument_fields
from ..tasks.arguments import Text
from ..tasks.scripts import FunctionInfo, Param, parse_arguments

__all__ = ["PluginInfo", "available", "by_name", "parameter_fields", "values_of"]


def parameter_fields(names: Iterable[str]) -> list[ArgumentField]:
    """A field for each parameter of plugins; one that cannot be had has none.

    Args:
        names: of the plugins.
    """
    return [field for name in names for field in _fields_of(name)]


def values_of(names: Sequence[str], texts: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """What a person wrote for plugins' parameters, as values: by the plugin's name, then the parameter's.

    Args:
        names: of the plugins that there are to be.
        texts: name of a parameter and what was written.

    Raises:
        UsageError: there is no such plugin among them, it has no such parameter, or a text is none of its values.
        PluginError: an installed plugin cannot be imported.
    """
    given: dict[str, list[str]] = {}
    for key, text in texts.items():
        name, _, parameter = key.rpartition(".")
        with of_field("plugin_settings"):
            if name not in names:
                there = ", ".join(names) if names else "there are none"
                raise UsageError(f"{key} is a parameter of no plugin of this launch: {there}")
        given.setdefault(name, []).append(f"{parameter}={text}")
    return {name: _values(name, pairs) for name, pairs in given.items()}


def _values(name: str, pairs: Sequence[str]) -> dict[str, Any]:
    made = factory(name)
    with of_field("plugin_settings"):
        secret = {each.name for each in _declared(made) if not each.repr}
        for pair in pairs:
            if (parameter := pair.partition("=")[0]) in secret:
                raise UsageError(
                    f"{parameter} of plugin {name} is a secret, and would be kept as it was written: give it in Python"
                )
        try:
            values = parse_arguments(_as_function(name, made), pairs)
        except UsageError as error:
            error.field = "plugin_settings"  # and no argument of what is called
            raise
        for parameter, value in values.items():
            if isinstance(value, Text):
                raise UsageError(
                    f"{parameter} of plugin {name} is of a type that no text says: give it in Python"
                )
    return values


def _fields_of(name: str) -> Iterator[ArgumentField]:
    try:
        made = factory(name)
    except SkywardError:  # who asks for the plugin is told
        return
    helps = {each.name: str(each.metadata.get("help", "")) for each in _declared(made)}
    for found in argument_fields(_as_function(name, made)):
        yield replace(found, name=f"{name}.{found.name}", help=helps[found.name])


def _as_function(name: str, made: Any) -> FunctionInfo:
    """A plugin's class as arguments of functions are read and shown."""
    params = tuple(map(_param, (each for each in _declared(made) if each.repr)))
    module = vars(sys.modules[made.__module__]) if params else {}
    types = {alias: kind for alias, kind in module.items() if get_origin(kind) is not None}
    return FunctionInfo(
        name=f"plugin {name}", params=params, doc="", line=0, is_generator=False, timeout=None, types=types
    )


def _declared(made: Any) -> list[Field[Any]]:
    return [each for each in fields(made) if each.init] if is_dataclass(made) else []


def _param(each: Field[Any]) -> Param:
    if each.default is not MISSING:
        default: str | None = repr(each.default)
    else:
        default = None if each.default_factory is MISSING else repr(each.default_factory())
    annotation = each.type if isinstance(each.type, str) else getattr(each.type, "__name__", str(each.type))
    return Param(each.name, annotation, default, required=default is None, kind="keyword")
