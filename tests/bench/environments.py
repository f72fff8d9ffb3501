"""Benchmark of a second start with an existing environment, compared with a start without an image."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from tests.support.wheels import tiny_wheels

from . import work
from .fresh import fresh
from .metric import Bar, Metric

NODES = 2
ROUNDS = 9


def measure() -> list[Metric]:
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(tiny_wheels(Path(folder, "wheels"), "1.0"))
        home = str(Path(folder, "home"))
        fresh("environments:start_s", home, ["skytiny==1.0"])  # makes it
        without, made = [], []
        for _ in range(ROUNDS):
            without.append(fresh("environments:start_s", home, []))
            made.append(fresh("environments:start_s", home, ["skytiny==1.0"]))
    more = (median(made) - median(without)) * 1000
    return [
        Metric("start_in_made_environment_s", median(made), median(without)),
        Metric("made_environment_costs_ms", more, bar=Bar(at_most=100)),
    ]


def start_s(home: str, pip: list[str]) -> float:
    """Return the seconds from the import to the first broadcast's results."""
    os.environ["SKYWARD_HOME"] = home
    began = perf_counter()
    import skyward_core as sky

    image: Any = sky.Image(pip=tuple(pip))
    options = sky.Options(console=False)
    with sky.Compute(provider=sky.Local(), nodes=NODES, image=image, options=options) as compute:
        sky.function(work.noop())() @ compute
        return perf_counter() - began
