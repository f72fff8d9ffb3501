"""Instance info of a rank: content, JSON, immutability and inheritance by child processes."""

import copy
import dataclasses
import pickle
import threading
import typing

import pytest

from skyward_core.runtime import instance_info_and_attempt as runtime_info
from skyward_core.runtime.instance_info_and_attempt import (
    InstanceInfo,
    Network,
    Peer,
    instance_info,
    set_current,
    set_place,
    using,
)


@pytest.fixture(autouse=True)
def reset_instance_info():
    yield
    set_current(InstanceInfo())


def test_instance_info_off_a_pool_describes_a_pool_of_one():
    info = instance_info()
    assert (info.node, info.total_nodes, info.rank, info.world_size) == (0, 1, 0, 1)
    assert (info.local_rank, info.ranks_per_node) == (0, 1)
    assert info.is_head
    assert info.head_addr == "127.0.0.1"
    assert info.peers == (Peer(0, "127.0.0.1"),)
    assert info.pool == info.run == ""


def test_address_of_instance_info_is_that_of_its_own_node():
    peers = (Peer(0, "10.0.0.1"), Peer(1, "10.0.0.2"))
    assert InstanceInfo(node=1, head_addr="10.0.0.1", peers=peers).address == "10.0.0.2"
    assert InstanceInfo(node=1, head_addr="10.0.0.1", peers=()).address == "10.0.0.1"


def test_instance_info_round_trips_through_json():
    info = InstanceInfo(3, 4, 7, 8, 1, 2, "10.0.0.1", 4242, 1, (Peer(0, "10.0.0.1"), Peer(3, "10.0.0.4")), "p", "r1")
    assert InstanceInfo.from_json(info.to_json()) == info


def test_instance_info_is_visible_to_all_threads():
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
def test_unrelated_compute_pool_variable_is_ignored(held, monkeypatch):
    monkeypatch.setenv("COMPUTE_POOL", held)
    monkeypatch.setattr(runtime_info, "_current", None)
    assert instance_info() == InstanceInfo()


def test_child_process_of_a_rank_inherits_instance_info(monkeypatch):
    peers = [{"node": n, "address": f"10.0.0.{n}", "ports": list(range(40000, 40008))} for n in range(3000)]
    place = {"rank": 7, "peers": peers[:4], "network": {"interface": "eth0", "gbps": 25.0}, "hostname": "n0"}
    for info in (place, place | {"peers": peers}):
        monkeypatch.setenv("COMPUTE_POOL", "")  # so that the variable and the place in the pool are restored
        monkeypatch.setattr(runtime_info, "_in_pool", None)
        set_place(info)
        mine = instance_info()
        assert mine.peers[3].ports == tuple(range(40000, 40008))
        assert (mine.network, mine.hostname) == (Network("eth0", 25.0), "n0")
        monkeypatch.setattr(runtime_info, "_current", None)
        theirs = instance_info()  # as a child finds it
        assert (theirs.rank, theirs.network, len(theirs.peers)) == (7, mine.network, len(mine.peers))
        assert theirs.peers[3].ports == (mine.peers[3].ports if info is place else ())


PLACE = InstanceInfo(
    rank=3, world_size=8, peers=(Peer(0, "a", (1, 2)), Peer(1, "b")), network=Network("eth0", 25.0), hostname="n0"
)


def test_instance_info_behaves_as_a_dataclass():
    assert dataclasses.is_dataclass(PLACE) and dataclasses.is_dataclass(Peer)
    fields = dataclasses.fields(InstanceInfo)
    assert [each.name for each in fields] == list(InstanceInfo.__match_args__)
    assert {each.name: each.type for each in fields} == InstanceInfo.__annotations__
    assert InstanceInfo.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert typing.get_type_hints(InstanceInfo)["network"] is Network
    assert dataclasses.asdict(PLACE)["peers"] == (
        {"node": 0, "address": "a", "ports": (1, 2)}, {"node": 1, "address": "b", "ports": ()},
    )  # fmt: skip
    other = dataclasses.replace(PLACE, rank=4)
    assert (other.rank, other.peers) == (4, PLACE.peers) and other != PLACE


@pytest.mark.parametrize("place", [PLACE, PLACE.network, *PLACE.peers])
def test_instance_info_is_immutable(place):
    name = dataclasses.fields(place)[0].name
    before = repr(place)
    with pytest.raises(dataclasses.FrozenInstanceError, match=f"^cannot assign to field '{name}'$"):
        setattr(place, name, 7)
    with pytest.raises(dataclasses.FrozenInstanceError, match=f"^cannot delete field '{name}'$"):
        delattr(place, name)
    with pytest.raises(dataclasses.FrozenInstanceError, match="altitude"):
        place.altitude = 7
    assert repr(place) == before and not hasattr(place, "__dict__")


def test_instance_info_is_equal_hashed_and_pickled_by_its_fields():
    same = InstanceInfo.from_json(PLACE.to_json())
    assert same == PLACE and hash(same) == hash(PLACE) and len({same, PLACE, InstanceInfo()}) == 2
    assert Peer(0, "a") != Peer(0, "b") and Peer(0, "a") != (0, "a", ())
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(PLACE, protocol)) == PLACE
    assert copy.copy(PLACE) == PLACE == copy.deepcopy(PLACE)
    assert PLACE.__reduce_ex__(4)[2][:4] == [0, 1, 3, 8]  # as versions before this one have it, too
