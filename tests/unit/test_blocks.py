"""Gangs of some of a node's ranks: which ranks a call gets, when it begins, what its outcome is made of."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from skyward_core.node.agent import partial_gangs
from skyward_core.node.agent.agent import _restore_journal
from skyward_core.node.agent.agent_state import Gang
from skyward_core.node.agent.call_journal import Call
from skyward_core.node.agent.worker_processes import Process
from skyward_core.node.agent.worker_slot import Slot
from skyward_core.protocol.frame_codec import NONE_SUMMARY, Header, WireError
from skyward_core.runtime.rendezvous import limit_machine_share
from tests.support.agent_parts import Node, Peer
from tests.support.waiting import until

NOBODY = 1 << 30  # no process has such a number: signals reach none
ECHO = {"type": "RuntimeError", "message": "[gloo/transport/tcp/pair.cc:1] Connection closed by peer"}


class Ranks(Node):
    """Four ranks with processes that never do anything; calls come from a client."""

    def __init__(self, folder: Path, **config: Any) -> None:
        super().__init__(folder, ranks_per_node=4, concurrency=1, **config)
        self.state.learn_gang(Gang(epoch=1))
        self._calls = 0
        self.hears = True  # the client says so at once
        for slot in self.places:
            self.have_process(slot)

    def have_process(self, slot: Slot, epoch: int | None = None) -> Process:
        """A fresh one, or one of the gang that has entered it."""
        slot.logs.open()
        slot.process = made = Process(NOBODY + slot.rank)
        made.connection, made.epoch, made.is_ready = Peer(), epoch, epoch is not None
        return made

    def send(self, run: str = "r1", **header: Any) -> Call:
        told: Any = {"t": "call", "run": run, "i": self._calls, "kind": "sweep"} | header
        call = Call(run, self._calls, told, b"", self.peer)
        self._calls += 1
        self.state.registry.add(call)
        if call.width > 1:
            self.slots.partial_gangs.validate(call)
            self.slots.partial_gangs.enqueue(call)
            if self.hears:
                self.slots.on_gang_ack(self.peer, self.state.gang.epoch)
        else:
            self.slots.pick_slot(call).enqueue(call)
        return call

    def running(self) -> list[int | None]:
        """By rank, the index of what it runs."""
        return [next((call.index for call in slot.running.values()), None) for slot in self.places]

    def set_end(self, rank: int, kind: str = "returned", **more: Any) -> None:
        """A rank's process tells what came of its call."""
        slot = self.places[rank]
        (call,) = slot.running.values()
        told: Any = {"t": "outcome", "run": call.run, "i": call.index, "kind": kind, "seconds": 1.0}
        body = str(rank).encode()
        slot.on_outcome(call, told | {"summary": NONE_SUMMARY, "size": 0} | more, body)

    def dies(self, rank: int) -> None:
        self.places[rank].on_exit(9)

    def outcomes(self) -> list[tuple[int, str, int]]:
        """Index, kind and rank of all that the client has been told."""
        return [(told["i"], told["kind"], told["rank"] - 4) for told in self.peer.told if told["t"] == "outcome"]

    def told_to(self, rank: int) -> list[Header]:
        process = self.places[rank].process
        assert process is not None and isinstance(process.connection, Peer)
        return process.connection.told


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path)


@pytest.mark.parametrize("width", [3, 4, 8])
async def test_blocks_that_a_node_has_not_are_refused(ranks: Ranks, width: int) -> None:
    with pytest.raises(WireError, match=f"no blocks of {width} ranks: it has 4"):
        ranks.send(width=width)


async def test_each_block_has_one_call_at_a_time_and_processes_live_on(ranks: Ranks) -> None:
    for _ in range(3):
        ranks.send(width=2)
    assert ranks.running() == [0, 0, 1, 1]
    ranks.set_end(3)
    assert ranks.running() == [0, 0, 1, None], "the other rank is at it still"
    ranks.set_end(2)
    assert ranks.running() == [0, 0, 2, 2]
    assert [told["t"] for told in ranks.told_to(2)] == ["setup", "call", "call"]
    assert ranks.outcomes() == [(1, "returned", 2)]


async def test_its_ranks_are_told_a_world_of_their_own(ranks: Ranks) -> None:
    ranks.send(width=2)
    ranks.send(width=2)
    setups = [ranks.told_to(rank)[0] for rank in range(4)]
    infos = [setup["info"] for setup in setups]
    assert [(info["rank"], info["local_rank"], info["world_size"]) for info in infos] == 2 * [
        (0, 0, 2),
        (1, 1, 2),
    ]
    assert {(info["node"], info["total_nodes"], info["ranks_per_node"]) for info in infos} == {(0, 1, 2)}
    heads = [info["head_port"] for info in infos]
    assert heads[0] == heads[1] != heads[2] == heads[3]
    assert [len(info["peers"][0]["ports"]) for info in infos] == [2] * 4
    lives = [setup["life"]["name"] for setup in setups]
    assert lives[0] == lives[1] != lives[2] == lives[3]


async def test_ranks_that_see_all_gpus_share_them(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, accelerators=8, env={"CUDA_VISIBLE_DEVICES": "0,1,2,3,8,9,10,11"})
    ranks.send(width=2)
    ranks.send(width=2)
    assert [ranks.told_to(rank)[0]["devices"] for rank in range(4)] == 2 * ["0,1,2,3"] + 2 * ["8,9,10,11"]
    assert ranks.told_to(0)[0]["info"]["accelerators"] == 4


async def test_one_gpu_is_there_for_all_ranks(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, accelerators=1)
    ranks.send(width=2)
    assert "devices" not in ranks.told_to(0)[0] and ranks.told_to(0)[0]["info"]["accelerators"] == 1


async def test_who_comes_later_is_told_how_many_ranks_a_run_has_each_time(ranks: Ranks) -> None:
    ranks.send(width=2)
    (record,) = ranks.state.registry.records.values()
    assert record.to_json()["width"] == 2


async def test_ranks_that_see_their_own_gpu_are_told_of_no_other(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, accelerators=4, devices=["a", "b", "c", "d"])
    ranks.send(width=2)
    assert "devices" not in ranks.told_to(0)[0] and ranks.told_to(0)[0]["info"]["accelerators"] == 2


async def test_a_broadcast_that_came_before_goes_first_on_all_ranks(ranks: Ranks) -> None:
    """Though its parts come one by one, and the call for a block between them."""
    for slot in ranks.places:
        ranks.have_process(slot, 1)
    of_gang = {"gang": True, "epoch": 1, "kind": "broadcast"}
    ranks.send("b", rank=4, **of_gang)
    ranks.send(width=2)
    for rank in (5, 6, 7):
        ranks.send("b", rank=rank, **of_gang)
    assert ranks.running() == [0, 2, 3, 4]
    assert any(told.get("spent") for told in ranks.peer.told), "what comes next is for another gang"
    for rank in (0, 2, 3):
        ranks.set_end(rank)
        assert 1 not in ranks.running() and not ranks.places[3].process.kill_reason  # type: ignore[union-attr]
    ranks.set_end(1)
    for rank in (2, 3):  # those had least to do when it came; they have left the gang
        assert ranks.places[rank].process.kill_reason  # type: ignore[union-attr]
        ranks.places[rank].on_exit(0)
        ranks.have_process(ranks.places[rank])
    ranks.slots.pump()
    assert ranks.running() == [None, None, 1, 1]
    assert not ranks.state.gang.broken_reason, "ranks of other nodes may be at the broadcast still"


async def test_until_all_clients_know_that_the_gang_is_spent_its_broadcasts_go_first(ranks: Ranks) -> None:
    """Else some ranks would begin one that was on its way, and others would have left its gang."""
    for slot in ranks.places:
        ranks.have_process(slot, 1)
    ranks.hears = False
    ranks.audience.add(other := Peer())
    ranks.send(width=2)
    assert ranks.running() == 4 * [None]
    assert [told["epoch"] for told in other.told if told.get("ask")] == [1]
    for rank in range(4, 8):
        ranks.send("b", rank=rank, gang=True, epoch=1, kind="broadcast")
        ranks.slots.on_gang_ack(ranks.peer, 1)
        ranks.slots.on_gang_ack(other, 7)
    assert ranks.running() == [1, 2, 3, 4]
    ranks.slots.on_gang_ack(other, 1)
    for rank in range(4):
        assert not any(slot.process.kill_reason for slot in ranks.places if slot.process)
        ranks.set_end(rank)
    left = [slot.rank - 4 for slot in ranks.places if slot.process and slot.process.kill_reason]
    assert len(left) == 2, "they are taken for the block now"


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_client_that_says_nothing_is_waited_for_while_it_is_there_and_not_for_long(
    ranks: Ranks, leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial_gangs, "BLOCK_ANSWER_TIMEOUT", 60.0 if leaves else 0.01)
    ranks.hears = False
    ranks.send(width=2)
    assert ranks.running() == 4 * [None]
    if leaves:
        ranks.slots.on_gang_ack(ranks.peer)
    await until(lambda: ranks.running() == [0, 0, None, None])


async def test_what_waits_in_a_block_waits_once_more_where_a_client_forms_another_gang(ranks: Ranks) -> None:
    task = ranks.send("r0", rank=7)
    first, late = ranks.send(width=2), ranks.send(width=2)
    assert ranks.running()[:2] == [1, 1] and ranks.places[2].next_call is late.parts[0]
    ranks.hears = False
    ranks.state.learn_gang(Gang(epoch=2))
    ranks.slots.on_new_gang()
    assert first.parts and not late.parts and ranks.places[2].next_call is None
    asked = [told["epoch"] for told in ranks.peer.told if told.get("ask")]
    assert asked == [1, 2] and ranks.places[3].load == 1, task
    ranks.slots.on_gang_ack(ranks.peer, 2)
    assert late.parts and ranks.places[2].next_call is late.parts[0]


async def test_a_broadcast_that_came_after_waits_and_so_do_blocks_behind_it(ranks: Ranks) -> None:
    ranks.send(width=2)
    ranks.state.learn_gang(Gang(epoch=2))
    for rank in range(4, 8):
        ranks.send("b", rank=rank, gang=True, epoch=2, kind="broadcast")
    late = ranks.send(width=2)
    assert ranks.running()[:2] == [0, 0] and not any(late.key in slot.running for slot in ranks.places)


@pytest.mark.parametrize(
    ("ends", "kind", "rank"),
    [
        ([(1, {}), (0, {})], "returned", 0),
        ([(0, {"kind": "raised", "error": {"type": "ValueError", "message": "bad"}}), (1, {})], "raised", 0),
        ([(1, {"kind": "raised", "error": {"type": "ValueError", "message": "bad"}}), (0, {})], "raised", 1),
        ([(0, {"kind": "raised", "error": ECHO}), (1, {"kind": "lost"})], "lost", 1),
        ([(0, {"kind": "raised", "error": ECHO}), (1, {})], "raised", 0),
    ],
)
async def test_the_outcome_is_the_first_ranks_or_that_of_the_cause(
    ranks: Ranks, ends: list[tuple[int, dict[str, Any]]], kind: str, rank: int
) -> None:
    call = ranks.send(width=2)
    for each, how in ends:
        ranks.set_end(each, **how)
    assert ranks.outcomes() == [(0, kind, rank)]
    assert call.result == str(rank).encode()
    log = call.outcome.get("log", {}) if call.outcome else {}
    assert {name.split(".")[0] for name in log} == {"r004", "r005"}, "of both ranks"
    assert not ranks.state.has_partial_gangs


async def test_a_rank_that_fails_has_the_others_stopped(ranks: Ranks) -> None:
    ranks.send(width=2)
    ranks.send(width=2)
    ranks.set_end(1, "raised", error={"type": "ValueError", "message": "bad"})
    processes = [slot.process for slot in ranks.places]
    assert [process.kill_reason for process in processes if process] == [
        "fail-fast of run r1",
        "its gang was replaced",
        "",
        "",
    ]
    assert ranks.outcomes() == [], "it is told once all have ended"
    ranks.dies(0)
    assert ranks.outcomes() == [(0, "raised", 1)] and ranks.running() == [None, None, 1, 1]


async def test_a_rank_that_dies_has_the_others_stopped(ranks: Ranks) -> None:
    ranks.send(width=2)
    ranks.dies(0)
    assert ranks.places[1].process.kill_reason == "fail-fast of run r1"  # type: ignore[union-attr]
    ranks.dies(1)
    assert ranks.outcomes() == [(0, "exited", 0)]


async def test_stopping_a_call_stops_all_of_its_ranks_or_takes_it_out(ranks: Ranks) -> None:
    calls = [ranks.send(width=2) for _ in range(4)]
    ranks.slots.stop(calls[3], "cancel", 1.0)
    assert ranks.outcomes() == [(3, "collateral", -1 - 4)], "it waited for a block"
    ranks.slots.stop_run("r1", "cancel", 1.0, breaks=False)
    assert all(slot.process and slot.process.kill_reason == "cancel of run r1" for slot in ranks.places)
    for rank in range(4):
        ranks.dies(rank)
    assert [told[:2] for told in sorted(ranks.outcomes())] == [(n, "collateral") for n in range(4)]
    assert ranks.running() == [None] * 4 and not ranks.state.has_partial_gangs


async def test_a_plugin_around_the_node_is_no_blocks(ranks: Ranks) -> None:
    ranks.state.gang.has_app_hooks = True
    call = ranks.send(width=2)
    assert call.outcome is not None and "around the whole node" in str(call.outcome.get("error"))


async def test_a_process_that_dies_between_two_calls_takes_its_block_with_it(ranks: Ranks) -> None:
    ranks.send(width=2)
    ranks.set_end(0)
    ranks.set_end(1)
    ranks.dies(0)
    assert ranks.places[1].process.kill_reason == "its gang was replaced"  # type: ignore[union-attr]
    assert not any(slot.process.kill_reason for slot in ranks.places[2:])  # type: ignore[union-attr]


async def test_processes_in_which_a_call_failed_take_no_other(ranks: Ranks) -> None:
    ranks.send(width=2)
    ranks.set_end(0)
    ranks.set_end(1, "raised", error={"type": "ValueError", "message": "bad"})
    assert [slot.process.kill_reason for slot in ranks.places[:2]] == ["its gang was replaced"] * 2  # type: ignore[union-attr]


async def test_tasks_that_want_the_whole_gangs_contexts_give_way(ranks: Ranks) -> None:
    """There is no whole gang while some of its ranks are in blocks."""
    ranks.state.gang.has_hooks = True
    ranks.state.gang.spent_reason = "so"
    for slot in ranks.places:
        slot.left_epoch = 1
        ranks.send("task", rank=slot.rank)
    ranks.send(width=2)
    assert ranks.running() == [4, 4, None, None]


def test_a_rank_of_a_block_keeps_to_its_share_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    limit_machine_share(1 << 20, "2,3")
    assert (os.environ["CUDA_VISIBLE_DEVICES"], os.environ["OMP_NUM_THREADS"]) == ("2,3", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    limit_machine_share(1, "")
    assert (os.environ["CUDA_VISIBLE_DEVICES"], os.environ["OMP_NUM_THREADS"]) == ("2,3", "7")


@pytest.mark.parametrize("shortened", [True, False])
async def test_an_agent_that_follows_knows_the_parts_of_a_call(ranks: Ranks, shortened: bool) -> None:
    ranks.send(width=2)
    ranks.set_end(1)
    if shortened:
        ranks.state.journal.compact()
    register = ranks.state.registry
    known = dict(register.calls)
    register.calls.clear()
    register._by_run.clear()
    _restore_journal(ranks.state, ranks.desk)
    (call,) = register.calls.values()
    assert call.key in known and call.owner is None and call.outcome is None
    assert [(part.rank, part.outcome is not None) for part in call.parts] == [(4, False), (5, True)]
