"""``sky.emit``: what the newest generation's functions tell while they run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .metrics import log


def emit(name: str, payload: Any = None) -> None:
    """Tell something: a line of the log has it, and its numbers are logged, too, ``NAME.KEY`` each, by ``sky.log``.

    Args:
        name: what is told.
        payload: a mapping, a number, or whatever else JSON takes.
    """
    parts = payload if isinstance(payload, Mapping) else {"": payload}
    numbers = {
        f"{name}.{key}".removesuffix("."): value
        for key, value in parts.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    if numbers:
        log(**numbers)
    print(name if payload is None else f"{name} {json.dumps(payload, default=str)}", flush=True)  # noqa: T201
