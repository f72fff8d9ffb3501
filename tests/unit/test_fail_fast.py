"""Agents of a gang stop one another's ranks where no client is there; strangers who reach their port do not."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from skyward_core.node.agent import gang_queue_and_fail_fast
from skyward_core.node.agent.call_registry import Call
from skyward_core.node.agent.gang_queue_and_fail_fast import FailFast, sign_failure
from skyward_core.node.agent.gang_state import Gang
from skyward_core.protocol.frame_codec import Decoder, encode_frame
from tests.support.agent_parts import Node
from tests.support.waiting import until

KEY, EPOCH = "5e" * 32, 3


class Member:
    """A node of a gang of three, whose rank has been given a call of run r1."""

    def __init__(self, folder: Path, number: int) -> None:
        folder.mkdir()
        self.node = node = Node(folder, ranks_per_node=1)
        node.state.config = node.state.config.replace(node=number, address="127.0.0.1")
        node.state.learn_gang(Gang(EPOCH))
        header: Any = {"gang": True, "rank": 1, "kind": "broadcast", "epoch": EPOCH, "total": 3}
        self.call = Call("r1", number, header, b"", None)
        node.state.registry.add(self.call)
        node.slots.slots[0].enqueue(self.call)
        self.fail_fast = FailFast(node.state, node.slots)
        self.place = (number, "127.0.0.1", self.fail_fast.get_port())

    @property
    def stopped(self) -> bool:
        return self.call.stop_reason == "fail-fast" and bool(self.node.state.gang.broken_reason)

    def fail(self) -> None:
        """Its rank ends by itself."""
        told: Any = self.call.make_outcome({"kind": "exited", "error": {"type": "RankExit", "message": "9"}})
        self.node.slots.slots[0].queue.clear()
        self.node.desk.finish(self.call, told)


@pytest.fixture
async def gang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Member]]:
    monkeypatch.setattr(gang_queue_and_fail_fast, "CLIENT_GRACE", 0.05)
    monkeypatch.setattr(gang_queue_and_fail_fast, "RETRY_DELAY", 0.05)
    members = [Member(tmp_path / str(number), number) for number in range(3)]
    for each in members:
        each.fail_fast.set_peers({"key": KEY, "nodes": [other.place for other in members]})
    yield members
    for each in members:
        each.fail_fast.close()


async def look_until(member: Member, what: Any) -> None:
    """Have it look, as its agent does again and again, until something holds."""

    def looked() -> bool:
        member.fail_fast.check()
        return bool(what())

    await until(looked)


async def say(member: Member, data: bytes) -> list[dict[str, Any]]:
    """Connect to its port as a stranger does; what comes in answer."""
    reader, writer = await asyncio.open_connection(*member.place[1:])
    writer.write(data)
    try:
        return [dict(header) for header, _ in Decoder().feed(await reader.read())]
    except ConnectionResetError:  # it hung up before it had read everything
        return []
    finally:
        writer.close()


def told(key: str = KEY, **changed: Any) -> bytes:
    said: dict[str, Any] = {"t": "failed", "run": "r1", "epoch": EPOCH, "node": 0} | changed
    said.setdefault("signature", sign_failure(key, said["run"], said["epoch"], said["node"]))
    return encode_frame(said)


async def test_who_has_seen_its_rank_fail_has_the_others_stop_theirs(gang: list[Member]) -> None:
    gang[1].fail()
    await look_until(gang[1], lambda: gang[0].stopped and gang[2].stopped)
    for each in (gang[0], gang[2]):
        assert each.call.outcome is not None
        assert each.call.outcome["kind"] == "collateral"


async def test_of_what_went_well_or_was_stopped_nobody_is_told(gang: list[Member]) -> None:
    gang[1].node.slots.slots[0].queue.clear()
    gang[1].node.desk.finish(gang[1].call, gang[1].call.make_outcome({"kind": "returned"}))
    gang[2].fail_fast._slots.stop_run("r1", "cancel", 1.0, breaks=False)
    await asyncio.sleep(0.1)
    for each in gang:
        each.fail_fast.check()
    assert [each.fail_fast._notifications for each in gang] == [{}, {}, {}]


async def test_a_client_that_is_there_decides_and_where_it_has_gone_they_do(gang: list[Member]) -> None:
    gang[0].call.owner = gang[0].node.peer
    gang[1].fail()
    await look_until(gang[1], lambda: gang[2].stopped)
    assert (await say(gang[0], told()))[0]["kept"] is True
    assert not gang[0].call.stop_reason
    gang[0].node.desk.on_client_gone(gang[0].node.peer)
    await look_until(gang[1], lambda: gang[0].stopped)


async def test_a_client_that_is_back_in_time_is_not_forestalled(
    gang: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang_queue_and_fail_fast, "CLIENT_GRACE", 60.0)
    gang[1].call.owner = gang[1].node.peer
    gang[1].fail()
    gang[1].node.desk.on_client_gone(gang[1].node.peer)
    gang[1].fail_fast.check()
    assert gang[1].fail_fast._notifications == {}


async def test_who_cannot_be_told_is_told_again(gang: list[Member]) -> None:
    number, address, port = gang[0].place
    line: Any = {"key": KEY, "nodes": [(number, address, 1), gang[2].place]}
    gang[1].fail_fast.set_peers(line)
    gang[1].fail()
    await look_until(gang[1], lambda: gang[2].stopped)
    line["nodes"][0] = (number, address, port)
    await look_until(gang[1], lambda: gang[0].stopped)


async def test_where_failures_are_to_stop_nobody_they_do_not(gang: list[Member]) -> None:
    for each in gang:
        each.fail_fast.set_peers(None)
    gang[1].fail()
    gang[1].fail_fast.check()
    assert gang[1].fail_fast._notifications == {}
    assert await say(gang[0], told()) == []
    assert not gang[0].call.stop_reason


@pytest.mark.parametrize(
    "data",
    [
        told(key="5f" * 32),
        told(signature=""),
        told(signature=sign_failure(KEY, "r1", EPOCH, 2)),
        told(signature=sign_failure(KEY, "r2", EPOCH, 0)),
        told(epoch=EPOCH + 1),
        told(epoch=EPOCH - 1),
        told(run="../r1"),
        told(signature="ä"),
        encode_frame({"t": "heard", "kept": True}),
        encode_frame({"t": "stop", "run": "r1"}),
        struct.pack(">II", 1 << 20, 0) + b" " * 4096,
        struct.pack(">II", 900, 1 << 30) + json.dumps({"t": "failed"}).encode().ljust(900),
        b"GET / HTTP/1.1\r\n\r\n",
        b"[" * 1000,
    ],
    ids=range(14),
)
async def test_a_stranger_stops_nothing(gang: list[Member], data: bytes) -> None:
    answers = await say(gang[0], data)
    assert "heard" not in {each["t"] for each in answers}
    assert not gang[0].call.stop_reason
    assert not gang[0].node.state.gang.broken_reason
    assert (await say(gang[0], told()))[0] == {"t": "heard", "kept": False}
    assert gang[0].stopped


async def test_many_who_say_nothing_keep_nobody_out_and_are_sent_away(
    gang: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang_queue_and_fail_fast, "PEER_TIMEOUT", 0.3)
    idle = [
        await asyncio.open_connection(*gang[0].place[1:])
        for _ in range(3 * gang_queue_and_fail_fast.MAX_PEER_CONNECTIONS)
    ]
    gang[1].fail()
    await look_until(gang[1], lambda: gang[0].stopped)
    for reader, writer in idle:
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
    await until(lambda: not gang[0].fail_fast._unauthenticated)


async def test_nothing_stays_open_to_a_node_that_does_not_answer(
    gang: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang_queue_and_fail_fast, "PEER_TIMEOUT", 0.3)
    closed = asyncio.Event()

    async def stand_still(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionResetError):
            await reader.read()
        closed.set()
        writer.close()

    async with await asyncio.start_server(stand_still, "127.0.0.1", 0) as server:
        place = server.sockets[0].getsockname()
        said: Any = {"t": "failed", "run": "r1", "epoch": EPOCH, "node": 1, "signature": "s"}
        assert not await gang_queue_and_fail_fast._notify_peer(said, place)
        await asyncio.wait_for(closed.wait(), 10)
