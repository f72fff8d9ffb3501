"""Machine metrics with problems."""

from __future__ import annotations

import json
from typing import Any

from skyward_core.views.machine_metrics import MachineMetrics

GB = 10**9


def measured(now: float, nodes: int, gpus: int) -> MachineMetrics:
    """Add metrics: a slow GPU on node 1, a GPU with an error that was lost on node 2, and a silent node 3."""
    book = MachineMetrics()
    for node in range(nodes):
        figures = {
            "cpu": 37.0 + node, "memory_used": (96 + node) * GB, "memory_total": 1024 * GB, "net_in": 1.2e9,
            "net_out": 1.1e9,
            "disk_read": 0.0, "disk_write": 2.5e6 * node, "spool_free": 812 * GB,
        }  # fmt: skip
        found: list[dict[str, Any]] = [
            {
                "util": 98 - gpu % 3, "mem_used": 71 * GB, "mem_total": 80 * GB, "power": 640, "power_limit": 700,
                "temp": 61 + gpu,
            }
            for gpu in range(gpus)
        ]  # fmt: skip
        if gpus and node == 1:
            found[4] |= {"util": 12, "throttle": 0x40}
        if gpus and node == 2:
            found[0] = {"lost": 1, "xid": 79}
        sample = {"at": now - (60 if node == 3 else 1), "node": figures, "gpus": found}
        book.feed(node, json.dumps(sample).encode())
    return book
