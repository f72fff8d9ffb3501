"""``Compute(name="train")``: a pool from the table ``[pools.train]`` of ``skyward.toml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from skyward_core.model.deprecated_and_unknown_arguments import did_you_mean
from skyward_core.model.errors import SkywardError, UsageError
from skyward_core.model.specs import NAME, Image, Nodes, Options, PipIndex, Worker
from skyward_core.plugins import Plugin, factory
from skyward_core.providers import DEFAULT_PROVIDER, provider_class
from skyward_core.store import skyward_toml, state_folder

_PLAIN_KEYS = (
    "accelerator", "vcpus", "cpus", "memory_gb", "disk_gb", "architecture", "region", "max_hourly_cost",
    "allocation", "selection", "ttl", "volumes", "ports",
)  # fmt: skip
_OPTION_KEYS = ({each.name for each in fields(Options)} | Options.older_words()) - {*_PLAIN_KEYS, "worker"}


def named_pool_arguments(name: str) -> dict[str, Any]:
    """Return the arguments of ``Compute`` for a named pool.

    Args:
        name: Name of a table in ``pools`` of ``skyward.toml``, in the working folder or in the user's settings folder.
            The working folder takes precedence.

    Raises:
        UsageError: If the table does not exist, or contains invalid values.
    """
    pools, providers = skyward_toml.pool_tables()
    table = pools.get(name)
    if not isinstance(table, Mapping):
        near = get_close_matches(name, pools, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"existing tables: {', '.join(pools) or 'none'}."
        raise UsageError(
            f"sky.Compute(name={name!r}) requires [pools.{name}] of a skyward.toml, but neither the file in the "
            f"working folder nor {state_folder.state_home() / state_folder.SETTINGS_FILE} has that table: {hint} "
            f"For a new pool give a provider: sky.Compute(provider=sky.Local(), name={name!r})"
        )
    try:
        return _parse_pool_table({**table}, name, providers)
    except (SkywardError, TypeError, AttributeError) as error:
        raise UsageError(f"[pools.{name}] of skyward.toml: {error}") from error


def _parse_pool_table(table: dict[str, Any], name: str, providers: Mapping[str, Any]) -> dict[str, Any]:
    arguments: dict[str, Any] = {key: table.pop(key) for key in _PLAIN_KEYS if key in table}
    arguments["name"] = table.pop("name", name if NAME.fullmatch(name) else name.lower().replace("_", "-"))
    arguments["provider"] = _parse_provider(table.pop("provider", None), providers)
    if (nodes := table.pop("nodes", None)) is not None:
        arguments["nodes"] = Nodes(**nodes) if isinstance(nodes, Mapping) else nodes
    if (image := table.pop("image", None)) is not None:
        indexes = [PipIndex(**each) for each in image.get("pip_indexes", ())]
        arguments["image"] = Image(**{**image, "pip_indexes": indexes})
    if (worker := table.pop("worker", None)) is not None:
        arguments["worker"] = Worker(**worker)
    if (plugins := table.pop("plugins", None)) is not None:
        arguments["plugins"] = [_parse_plugin(each, plugins) for each in plugins]
    options = table.pop("options", {}) | {key: table.pop(key) for key in sorted(_OPTION_KEYS & table.keys())}
    if options:
        arguments["options"] = Options(**options)
    if table:
        known = (
            *_PLAIN_KEYS,
            "name",
            "provider",
            "nodes",
            "image",
            "worker",
            "plugins",
            "options",
            *_OPTION_KEYS,
        )
        first = next(iter(table))
        raise UsageError(f"unknown key {first!r}{did_you_mean(first, known)}")
    return arguments


def _parse_provider(value: Any, providers: Mapping[str, Any]) -> Any:
    """Return a provider by its type name, or by the name of a table in ``providers``."""
    if value is None:
        return DEFAULT_PROVIDER
    if not isinstance(value, str):
        raise UsageError(f"provider must be a name, got {value!r:.60}")
    table = providers.get(value)
    parameters = {**table} if isinstance(table, Mapping) else {}
    from skyward_core.providers.unsupported_providers import PROVIDERS_BY_TYPE

    word = parameters.pop("type", value)
    return (PROVIDERS_BY_TYPE.get(word) or provider_class(word))(**parameters)


def _parse_plugin(name: str, tables: Any) -> Plugin:
    """Return a plugin by its name, with the parameters of its table, if any."""
    parameters = tables[name] if isinstance(tables, Mapping) else True
    made: Plugin = factory(name)(**(parameters if isinstance(parameters, Mapping) else {}))
    return made
