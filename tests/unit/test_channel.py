"""The worker's end of its connection: what an agent may not have taken goes to the next one."""

from __future__ import annotations

import socket
from pathlib import Path

from skyward_core.node.worker.agent_channel import AgentChannel
from skyward_core.protocol.frame_codec import Decoder, Header, encode_frame

CALL: Header = {"t": "call", "run": "r", "i": 0, "fn": ["ab", 1], "args": ["cd", 1]}


class Agent:
    """Listens where the worker looks, and reads frames."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        self._server.settimeout(30)

    def accept(self) -> None:
        self._connection, _ = self._server.accept()
        self._connection.settimeout(30)
        self._decoder = Decoder()

    def read(self, count: int) -> list[Header]:
        got: list[Header] = []
        while len(got) < count:
            got += [header for header, _ in self._decoder.feed(self._connection.recv(1 << 16))]
        return got

    def say(self, header: Header) -> None:
        self._connection.sendall(encode_frame(header))

    def die(self) -> None:
        self._server.close()
        self._connection.close()


def test_an_agent_that_has_spoken_has_not_seen_all_that_was_sent(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    agent = Agent(path)
    channel = AgentChannel(str(path), lambda: ({"t": "hello"}, b""), 30)
    agent.accept()
    for number in range(4):
        channel.send({"t": "outcome", "i": number})
    assert [header.get("i") for header in agent.read(5)] == [None, 0, 1, 2, 3]
    agent.say(CALL | {"seen": 3})  # the greeting, and two of them
    agent.say({"t": "credit", "run": "r", "i": 0, "next": 1})
    assert [channel.receive()[0]["t"] for _ in range(2)] == ["call", "credit"]
    agent.die()
    following = Agent(path)
    following.accept()
    assert [header.get("i") for header in following.read(3)] == [None, 2, 3]
    channel.send({"t": "outcome", "i": 4})
    assert following.read(1)[0]["i"] == 4
    following.say(CALL | {"seen": 2})
    channel.receive()
    following.die()
    last = Agent(path)
    last.accept()
    assert [header.get("i") for header in last.read(3)] == [None, 3, 4]
    last.die()


def test_what_an_agent_said_before_it_died_is_heard(tmp_path: Path) -> None:
    """Also where the worker was at something else meanwhile: the next agent believes that it knows."""
    path = tmp_path / "socket"
    agent = Agent(path)
    channel = AgentChannel(str(path), lambda: ({"t": "hello"}, b""), 30)
    agent.accept()
    channel.send({"t": "phase", "phase": "joining"})
    agent.read(2)
    for number in range(3):
        agent.say(CALL | {"i": number, "seen": 2})
    agent.die()
    following = Agent(path)
    following.accept()
    assert len(following.read(1)) == 1, "and sends nothing again that was seen"
    following.say({"t": "exit"})
    assert [channel.receive()[0].get("i") for _ in range(4)] == [0, 1, 2, None]
    following.die()
