"""What providers declare of themselves, for whoever offers them: names, settings, fields, prices."""

from __future__ import annotations

from ..providers import DEFAULT, by_name, names, own_names
from ..providers.base import Asks, HasHosts, Priced, Provider, settings_of
from ..providers.making import make
from ..providers.setting import Field, Setting

__all__ = [
    "DEFAULT",
    "Asks",
    "Field",
    "HasHosts",
    "Priced",
    "Provider",
    "Setting",
    "by_name",
    "make",
    "names",
    "own_names",
    "settings_of",
]
