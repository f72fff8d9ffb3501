"""Calls that moto does not know."""

from __future__ import annotations

from collections.abc import Callable

from .answers import Answer
from .request import Call
from .world import World

MORE: dict[tuple[str, str], Callable[[World, Call], Answer]] = {}
