"""``Compute(name="train")``: a pool as ``[pools.train]`` of a ``skyward.toml`` has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from skyward_core.model.errors import SkywardError, UsageError
from skyward_core.model.older_api_arguments import did_you_mean
from skyward_core.model.specs import NAME, Image, Nodes, Options, PipIndex, Worker
from skyward_core.plugins import Plugin, factory
from skyward_core.providers import DEFAULT_PROVIDER, provider_class
from skyward_core.store import state_folder

_PLAIN_KEYS = (
    "accelerator", "vcpus", "cpus", "memory_gb", "disk_gb", "architecture", "region", "max_hourly_cost",
    "allocation", "selection", "ttl", "volumes", "ports",
)  # fmt: skip
_OPTION_KEYS = frozenset({each.name for each in fields(Options)} | Options.older_words()) - {
    *_PLAIN_KEYS,
    "worker",
}


def named_pool_arguments(name: str) -> dict[str, Any]:
    """What ``Compute`` is to be given for a pool of that name.

    Args:
        name: of a table in ``pools``, of ``skyward.toml`` in the working folder or in the person's own folder; where
            both have it, the former's values count.

    Raises:
        UsageError: there is none of that name, or it says what cannot be used; says where.
    """
    pools, providers = state_folder.pool_tables()
    table = pools.get(name)
    if not isinstance(table, Mapping):
        near = get_close_matches(name, pools, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(pools) or 'none'};"
        raise UsageError(
            f"sky.Compute(name={name!r}) asks for [pools.{name}] of a skyward.toml, and neither the one here nor "
            f"{state_folder.state_home() / state_folder.SETTINGS_FILE} has it: {hint} a pool that is to be "
            f"called {name!r} "
            f"says where its machines come from, sky.Compute(provider=sky.Local(), name={name!r})"
        )
    try:
        return _parse_pool_table({**table}, name, providers)
    except (SkywardError, TypeError, AttributeError) as error:
        raise UsageError(f"[pools.{name}] of skyward.toml: {error}") from error


def _parse_pool_table(table: dict[str, Any], name: str, providers: Mapping[str, Any]) -> dict[str, Any]:
    asked: dict[str, Any] = {key: table.pop(key) for key in _PLAIN_KEYS if key in table}
    own = table.pop("name", name if NAME.fullmatch(name) else name.lower().replace("_", "-"))
    asked["name"] = own
    asked["provider"] = _parse_provider(table.pop("provider", None), providers)
    if (nodes := table.pop("nodes", None)) is not None:
        asked["nodes"] = Nodes(**nodes) if isinstance(nodes, Mapping) else nodes
    if (image := table.pop("image", None)) is not None:
        indexes = [PipIndex(**each) for each in image.get("pip_indexes", ())]
        asked["image"] = Image(**{**image, "pip_indexes": indexes})
    if (worker := table.pop("worker", None)) is not None:
        asked["worker"] = Worker(**worker)
    if (plugins := table.pop("plugins", None)) is not None:
        asked["plugins"] = [_parse_plugin(each, plugins) for each in plugins]
    options = {
        **table.pop("options", {}),
        **{key: table.pop(key) for key in sorted(_OPTION_KEYS & table.keys())},
    }
    if options:
        asked["options"] = Options(**options)
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
        raise UsageError(f"it has {first!r}, which no pool has{did_you_mean(first, known)}")
    return asked


def _parse_provider(said: Any, providers: Mapping[str, Any]) -> Any:
    """A provider by its word, or by the name of a table in ``providers``."""
    if said is None:
        return DEFAULT_PROVIDER
    if not isinstance(said, str):
        raise UsageError(f"provider: should be its name (got {said!r:.60})")
    table = providers.get(said)
    if not isinstance(table, Mapping):
        return _build_provider(said, {})
    parameters = {**table}
    return _build_provider(parameters.pop("type", said), parameters)


def _build_provider(word: str, parameters: Mapping[str, Any]) -> Any:
    from skyward_core.providers.unsupported_providers import PROVIDERS_BY_TYPE

    kind = PROVIDERS_BY_TYPE.get(word) or provider_class(word)
    return kind(**parameters)


def _parse_plugin(name: str, said: Any) -> Plugin:
    """A plugin by its name, with what a table says of it; of a list of names with nothing."""
    parameters = said[name] if isinstance(said, Mapping) else True
    made: Plugin = factory(name)(**(parameters if isinstance(parameters, Mapping) else {}))
    return made
