"""When an agent starts the process of ``around_app``, what ranks wait for, and what becomes of its end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skyward_core.node.agent import worker_slot
from skyward_core.node.agent.agent_state import NodeState
from skyward_core.node.agent.config import AgentConfig
from skyward_core.node.agent.connection import Connection
from skyward_core.node.agent.gang_state import Gang
from skyward_core.node.agent.worker_processes import Process
from skyward_core.node.agent.worker_slot import PluginContextProcess
from skyward_core.protocol.frame_codec import Header
from tests.support.agent_parts import Speaker

GANG = Gang(epoch=1, apps=True, hooks=True, plugins=b"their pickle")


class Around:
    """``PluginContextProcess`` of a node, with what it starts in place of processes: numbers that are no process's."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        config = AgentConfig(
            "p", 1, 2, str(folder), str(folder / "s"), ranks_per_node=2, idle_timeout=600.0, grace=60.0
        )
        config.spool.mkdir()
        self.state = NodeState(config)
        self.state.learn_gang(GANG)
        self.started = 0
        self.signals: list[int] = []
        self.pumped = 0
        self.broken: list[str] = []
        self.fails: OSError | None = None
        self.apps = PluginContextProcess(self.state, self._pump, self.broken.append)
        monkeypatch.setattr(worker_slot, "spawn", self._spawn)
        monkeypatch.setattr(worker_slot, "signal_group", lambda pid, number: self.signals.append(number))

    def _pump(self) -> None:
        self.pumped += 1

    def _spawn(self, *args: Any) -> int:
        if self.fails is not None:
            raise self.fails
        self.started += 1
        return 0

    def greet(self, state: str = "fresh") -> Speaker:
        process = Speaker(Connection(lambda _, header, body: self.hear(header, body), lambda _: None))
        header: Any = {"t": "hello", "pid": 0, "state": state}
        self.apps.on_connected(process.connection, header)
        return process

    def hear(self, header: Any, body: bytes = b"") -> None:
        self.apps.on_frame(header, body)

    def enter(self) -> Speaker:
        self.apps.ensure_entered()
        process = self.greet()
        process.add_note({"t": "entered"})
        process.told()
        return process


@pytest.fixture
def around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Around]:
    yield Around(tmp_path, monkeypatch)


async def test_a_fresh_process_is_given_the_plugins_once_and_ranks_wait_until_they_are_entered(
    around: Around,
) -> None:
    around.apps.ensure_entered()
    assert around.started == 1 and not around.apps.is_resolved
    process = around.greet()
    assert [(header["t"], body) for header, body in process.socket.frames] == [("setup", GANG.plugins)]
    process.told()
    process.add_note({"t": "entering", "plugin": "dask"})
    assert not around.apps.is_resolved and around.pumped == 0
    process.add_note({"t": "entered"})
    assert around.apps.is_resolved and around.pumped == 1
    around.apps.ensure_entered()
    assert around.started == 1 and process.told() == [], "the next epoch finds them entered"


async def test_one_that_outlived_its_agent_and_has_entered_is_given_nothing(around: Around) -> None:
    around.apps.process = Process(0)
    process = around.greet("entered")
    around.apps.ensure_entered()
    assert around.apps.is_resolved and process.told() == [] and around.started == 0


async def test_a_plugin_that_fails_is_told_to_the_ranks_and_the_process_goes(around: Around) -> None:
    around.apps.ensure_entered()
    process = around.greet()
    process.told()
    error: Header = {"type": "PluginError", "message": "plugin dask failed", "plugin": "dask"}
    assert process.add_note({"t": "failed", "error": error}, b"pickle") == [{"t": "exit"}]
    assert around.apps.is_resolved and around.apps.entry_failure == (error, b"pickle") and around.pumped == 1
    around.apps.on_exit(0)
    assert around.started == 1, "nobody has asked again"


async def test_one_that_was_asked_for_again_while_it_ended_is_followed_by_another(around: Around) -> None:
    around.apps.ensure_entered()
    around.greet().add_note({"t": "failed", "error": {"type": "E", "message": "", "plugin": "dask"}})
    around.apps.ensure_entered()
    assert not around.apps.is_resolved and around.started == 1
    around.apps.on_exit(0)
    assert around.started == 2


async def test_one_that_dies_in_user_code_fails_with_the_plugin_and_its_last_words(around: Around) -> None:
    around.apps.ensure_entered()
    (around.state.config.spool / "app.log").write_text("no such scheduler\n")
    around.greet().add_note({"t": "entering", "plugin": "dask"})
    around.apps.on_exit(signal.SIGKILL)
    assert around.apps.entry_failure is not None
    error, _ = around.apps.entry_failure
    assert error["message"].startswith("plugin dask failed in around_app: ")
    assert "SIGKILL" in error["message"] and error["message"].endswith("it said: no such scheduler")
    assert around.apps.is_resolved and not around.broken


async def test_the_gang_is_broken_when_what_was_entered_dies(around: Around) -> None:
    around.enter()
    around.apps.on_exit(os.WEXITSTATUS(0))
    assert len(around.broken) == 1 and "around_app ended" in around.broken[0]
    assert around.signals == [signal.SIGKILL], "and so are children that outlived it"


async def test_its_end_is_no_news_once_the_agent_closes(around: Around) -> None:
    process = around.enter()
    around.state.is_closing = True
    around.apps.exit_process(60.0)
    assert process.told() == [{"t": "exit"}] and around.signals == [], "it leaves its contexts by itself"
    around.apps.on_exit(0)
    assert around.apps.process is None and around.started == 1 and not around.broken


async def test_one_in_user_code_is_told_to_stop_by_a_signal(around: Around) -> None:
    around.apps.ensure_entered()
    around.greet()
    around.apps.exit_process(60.0)
    assert around.signals == [signal.SIGTERM]


async def test_one_that_cannot_be_started_is_a_failure_that_ranks_are_told(around: Around) -> None:
    around.fails = OSError("no descriptors left")
    around.apps.ensure_entered()
    assert around.apps.entry_failure is not None and around.pumped == 1
    assert "could not be started: no descriptors left" in around.apps.entry_failure[0]["message"]
