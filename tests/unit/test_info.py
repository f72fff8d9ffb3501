"""A rank's place in its pool."""

import json
import threading

import pytest

from skyward_core.runtime import info as runtime_info
from skyward_core.runtime.info import (
    InstanceInfo,
    Network,
    Peer,
    instance_info,
    set_current,
    set_place,
    using,
)


@pytest.fixture(autouse=True)
def off_a_pool():
    yield
    set_current(InstanceInfo())


def test_off_a_pool_is_a_pool_of_one():
    info = instance_info()
    assert (info.node, info.total_nodes, info.rank, info.world_size) == (0, 1, 0, 1)
    assert (info.local_rank, info.ranks_per_node) == (0, 1)
    assert info.is_head
    assert info.head_addr == "127.0.0.1"
    assert info.peers == (Peer(0, "127.0.0.1"),)
    assert info.pool == info.run == ""


def test_one_head_per_gang_however_many_ranks_the_head_node_has():
    gang = [
        InstanceInfo(
            node=rank // 2, total_nodes=2, rank=rank, world_size=4, local_rank=rank % 2, ranks_per_node=2
        )
        for rank in range(4)
    ]
    assert [info.is_head for info in gang] == [True, False, False, False]


def test_address_is_the_nodes_own():
    peers = (Peer(0, "10.0.0.1"), Peer(1, "10.0.0.2"))
    assert InstanceInfo(node=1, head_addr="10.0.0.1", peers=peers).address == "10.0.0.2"
    assert InstanceInfo(node=1, head_addr="10.0.0.1", peers=()).address == "10.0.0.1"


def test_json_keeps_everything():
    info = InstanceInfo(
        3, 4, 7, 8, 1, 2, "10.0.0.1", 4242, 1, (Peer(0, "10.0.0.1"), Peer(3, "10.0.0.4")), "p", "r1"
    )
    assert InstanceInfo.from_json(info.to_json()) == info


def test_json_of_a_newer_version_is_read():
    text = json.dumps(json.loads(InstanceInfo(rank=2, world_size=3).to_json()) | {"altitude": 9})
    assert InstanceInfo.from_json(text) == InstanceInfo(rank=2, world_size=3)


def test_json_that_is_no_place_is_refused():
    with pytest.raises(ValueError, match="JSON object"):
        InstanceInfo.from_json("[1]")


def test_the_worker_sets_it_for_all_threads():
    set_current(InstanceInfo(rank=5, world_size=8))
    seen = []
    thread = threading.Thread(target=lambda: seen.append(instance_info().rank))
    thread.start()
    thread.join()
    assert seen == [5] and instance_info().rank == 5


def test_concurrent_tasks_see_their_own_run():
    base = InstanceInfo(rank=1, world_size=2, pool="p")
    set_current(base)
    meet = threading.Barrier(2, timeout=10)
    seen = {}

    def task(run):
        with using(base.with_run(run)):
            meet.wait()  # both are inside at once
            seen[run] = instance_info().run
            meet.wait()

    threads = [threading.Thread(target=task, args=(run,)) for run in ("r1", "r2")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {"r1": "r1", "r2": "r2"}
    assert instance_info().run == ""


@pytest.mark.parametrize(
    "held", ["STREAMLIT_POOL", "[]", "{", '{"peers": [1]}', '{"peers": 1}', '{"network": {}}', "3"]
)
def test_a_variable_of_others_by_that_name_is_no_place(held, monkeypatch):
    monkeypatch.setenv("COMPUTE_POOL", held)
    monkeypatch.setattr(runtime_info, "_current", None)
    assert instance_info() == InstanceInfo()


def test_what_a_rank_starts_is_told_its_place(monkeypatch):
    peers = [{"node": n, "address": f"10.0.0.{n}", "ports": list(range(40000, 40008))} for n in range(3000)]
    place = {"rank": 7, "peers": peers[:4], "network": {"interface": "eth0", "gbps": 25.0}, "hostname": "n0"}
    for told in (place, place | {"peers": peers}):
        monkeypatch.setenv("COMPUTE_POOL", "")  # so that it is put back
        set_place(told)
        mine = instance_info()
        assert mine.peers[3].ports == tuple(range(40000, 40008))
        assert (mine.network, mine.hostname) == (Network("eth0", 25.0), "n0")
        monkeypatch.setattr(runtime_info, "_current", None)
        theirs = instance_info()  # as a child finds it
        assert (theirs.rank, theirs.network, len(theirs.peers)) == (7, mine.network, len(mine.peers))
        assert theirs.peers[3].ports == (mine.peers[3].ports if told is place else ())
