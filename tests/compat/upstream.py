"""The public names of three generations of Skyward, as ``upstream.toml`` lists them."""

from __future__ import annotations

import tomllib
from pathlib import Path

_FACTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))

FIRST: list[str] = _FACTS["first"]
SECOND: list[str] = _FACTS["second"]
THIRD: list[str] = _FACTS["third"]
ACCELERATORS: list[str] = _FACTS["accelerators"]
PARAMETERS: dict[str, dict[str, str]] = _FACTS["parameters"]
PROVIDERS: dict[str, str] = _FACTS["providers"]
MEMBERS: dict[str, str] = _FACTS["members"]
