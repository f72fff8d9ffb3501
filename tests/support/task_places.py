"""Place of a call in its pool. In a task, :func:`skyward_core.instance_info` describes a world of one rank."""

from __future__ import annotations

import json
import os


def pool_rank() -> int:
    """Return the rank, among those of the pool or gang, that runs this call."""
    place = json.loads(os.environ["COMPUTE_POOL"])
    return int(place.get("pool_rank", place["rank"]))
