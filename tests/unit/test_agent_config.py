"""What an agent is told: as a client sent it, and changed as values are."""

from __future__ import annotations

from typing import Any

import pytest

from skyward_core.node.agent.config import AgentConfig

TOLD: dict[str, Any] = {
    "pool": "p",
    "node": 0,
    "nodes": 2,
    "folder": "/n",
    "socket": "/s",
    "idle_timeout": 9.0,
    "grace": 1.0,
}


def test_it_is_what_a_client_sent_and_what_that_leaves_out() -> None:
    config = AgentConfig.from_json(TOLD | {"env": {"A": "1"}, "of_a_newer_version": 9})
    assert (config.pool, config.nodes, config.env, config.devices, config.ttl) == (
        "p",
        2,
        {"A": "1"},
        [],
        None,
    )
    other = AgentConfig("p", 0, 2, "/n", "/s", 9.0, 1.0)
    assert other.env == {} and other.env is not AgentConfig(**TOLD).env
    assert other.worker_socket == config.worker_socket


def test_a_changed_one_is_another() -> None:
    config = AgentConfig(**TOLD, secrets=["hunter2hunter2"])
    changed = config.replace(umask=0o022).with_gpus(["H100", "H100"])
    assert (changed.umask, changed.accelerators, changed.accelerator) == (0o022, 2, "H100")
    assert (config.umask, config.accelerators, changed.secrets) == (0o077, None, config.secrets)
    assert "hunter2" not in repr(changed)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"pool": "p", "node": 0}, "needs nodes, folder, socket, idle_timeout, grace$"),
        (TOLD | {"colour": "red"}, "has no colour$"),
    ],
)
def test_one_that_lacks_something_or_has_what_nobody_knows_is_refused(told: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        AgentConfig(**told)
