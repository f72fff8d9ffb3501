"""Sample frames of agents, one of each kind that tests modify."""

from __future__ import annotations

from typing import Any

from skyward_core.protocol.frame_codec import VERSION

SUMMARY = {"type": "int", "text": "1", "json": 1, "is_json": True, "size": 5}


OUTCOME: dict[str, Any] = {
    "t": "outcome", "run": "0a1b2c3d4e", "i": 0, "rank": 0, "node": 0, "kind": "returned", "seconds": 0.5,
    "begun": True, "summary": SUMMARY, "size": 5, "log": {"r000.out": [0, 7], "r000.1.err": [3, 3]},
}  # fmt: skip


BEGAN = {"t": "began", "run": "r", "i": 1, "rank": 1, "node": 0, "log": {"r001.out": 4}}


RECORD = {
    "run": "r", "function": "train", "kind": "broadcast", "total": 2, "opened_at": 1.5, "outcomes": [OUTCOME],
    "began": [BEGAN], "active": 1, "returned": 0,
}  # fmt: skip


WELCOME: dict[str, Any] = {
    "t": "welcome", "version": VERSION, "pool": "p", "node": 0, "pid": 7, "address": "10.0.0.1", "ranks_per_node": 2,
    "epoch": 1, "broken": "", "runs": [RECORD], "lease": None, "idle_timeout": 600,
}  # fmt: skip


LOG = {"t": "log", "f": "r000.out", "at": 0}
