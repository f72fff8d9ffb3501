"""What the parts of a launch are called on a command line, and what is read of the texts there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..model.capabilities import settings_of
from ..model.errors import UsageError
from ..providers import by_name, own_names

if TYPE_CHECKING:
    from ..model.setting import Setting

HOSTS = "--hosts"
"""The one setting of providers that has an option of its own on a command line."""

# What each field is called on a command line, in the order in which they are written there.
OPTIONS: Mapping[str, str] = {
    "arguments": "--arg",
    "sweep": "--sweep",
    "gang": "--gang",
    "gang_nodes": "--gang-nodes",
    "gang_ranks": "--gang-ranks",
    "python": "--python",
    "provider": "--provider",
    "settings": "--set",
    "nodes": "--nodes",
    "ranks_per_node": "--ranks-per-node",
    "accelerator": "--accelerator",
    "allocation": "--allocation",
    "max_hourly_cost": "--max-hourly",
    "selection": "--selection",
    "budget": "--budget",
    "wait_for_capacity": "--wait-for-capacity",
    "debug_wait": "--debug-wait",
    "plugins": "--plugin",
    "plugin_settings": "--plugin-set",
    "image_settings": "--image-set",
    "lock": "--lock",
    "requirements": "--requirements",
    "project": "--project",
    "outputs": "--output",
    "pool": "--pool",
    "one": "--one",
    "torchrun": "--torchrun",
    "keep": "--keep",
    "detach": "--detach",
    "timeout": "--timeout",
}


def how_given(setting: Setting | None, name: str, text: str) -> tuple[str, str]:
    """How a setting is given on a command line."""
    if setting is not None and setting.option == HOSTS:
        return HOSTS, text
    return OPTIONS["settings"], f"{name}={text}"


def with_hosts(
    provider: str | None, hosts: str | None, settings: Sequence[str]
) -> tuple[str | None, dict[str, str]]:
    """The provider that is meant, and its settings, of what a command line says.

    Args:
        provider: its name; None where none was said.
        hosts: what ``--hosts`` was given: of a provider of ours, unless another one is named.
        settings: texts ``name=value``.

    Raises:
        UsageError: a setting is no such text, or the provider takes no hosts.
    """
    texts = dict(map(_setting, settings))
    if hosts is not None:
        provider = provider or _with_hosts()
        own = [each.name for each in settings_of(by_name(provider)) if each.option == HOSTS]
        if not own:
            raise UsageError(
                f"--hosts are reached over SSH, not by provider {provider}: leave one of them out"
            )
        texts[own[0]] = hosts
    return provider, texts


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set {text}: write a setting of the provider as KEY=VALUE")
    return name.strip(), value


def plugin_setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    plugin, _, parameter = name.strip().rpartition(".")
    if not (equals and plugin and parameter):
        raise UsageError(
            f"{OPTIONS['plugin_settings']} {text}: write a parameter of a plugin as PLUGIN.NAME=VALUE"
        )
    return name.strip(), value


def _with_hosts() -> str:
    """The provider of ours that is meant where hosts are given and no name."""
    for name in own_names():
        if any(each.option == HOSTS for each in settings_of(by_name(name))):
            return name
    raise UsageError(f"{HOSTS} goes with a provider: name it with --provider")
