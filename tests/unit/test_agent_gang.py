"""The order in which clients may start gang runs, and the rendezvous' port."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import pytest

from skyward_core.node.agent.agent_state import Lease
from skyward_core.node.agent.gang_queue_and_fail_fast import GangLock
from skyward_core.node.agent.gang_state import EpochFile, Gang, ReservedPorts
from skyward_core.views import events
from skyward_core.views.pool_view import PoolView, apply
from skyward_tui.text.number_and_time_format import age, time_left
from skyward_tui.ui.refresh_and_repaint import refresh_token


class Client:
    """Stands for a client's connection."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.peer_name = f"client {id(self)}"
        self.waits_for = ""

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        if header["t"] == "held":
            self.waits_for = header["by"]
        else:
            self.told.append(header)

    @property
    def words(self) -> list[str]:
        said = [header["t"] + ("!" if header.get("unclean") else "") for header in self.told]
        self.told.clear()
        return said


def lock_and_clients(count: int) -> tuple[Any, list[Any]]:
    return GangLock(), [Client() for _ in range(count)]


def test_a_client_alone_is_granted_at_once_and_once() -> None:
    lock, (a,) = lock_and_clients(1)
    lock.request(a)
    lock.request(a)
    assert a.words == ["granted"]


def test_others_wait_in_order_and_the_holder_is_told() -> None:
    lock, (a, b, c) = lock_and_clients(3)
    for client in (a, b, c):
        lock.request(client)
    assert (a.words, b.words, c.words) == (["granted", "wanted", "wanted"], [], [])
    lock.release(a)
    assert (b.words, c.words) == (["granted", "wanted"], []), "somebody waits already: told with the grant"
    lock.release(b)
    assert (b.words, c.words) == ([], ["granted"])


def test_only_the_holder_can_release() -> None:
    lock, (a, b) = lock_and_clients(2)
    lock.release(a)
    lock.request(a)
    lock.request(b)
    lock.release(b)
    assert (a.words, b.words) == (["granted", "wanted"], [])
    lock.release(a)
    lock.release(a)
    lock.request(a)
    assert (a.words, b.words) == ([], ["granted", "wanted"])


def test_a_holder_that_vanishes_leaves_an_unclean_lock() -> None:
    lock, (a, b, c) = lock_and_clients(3)
    for client in (a, b, c):
        lock.request(client)
    lock.on_client_gone(a)
    assert b.words == ["granted!", "wanted"]
    lock.release(b)
    assert c.words == ["granted"], "whoever was told has cleaned up"


def test_the_next_one_is_told_however_late_it_comes() -> None:
    lock, (a, b) = lock_and_clients(2)
    lock.request(a)
    lock.on_client_gone(a)
    lock.request(b)
    assert b.words == ["granted!"]
    lock.on_client_gone(b)
    lock.request(b)
    assert b.words == ["granted!"], "it vanished too, perhaps half way through cleaning up"


def test_one_that_waited_and_vanished_leaves_nothing_behind() -> None:
    lock, (a, b, c) = lock_and_clients(3)
    for client in (a, b, c):
        lock.request(client)
    lock.on_client_gone(b)
    lock.on_client_gone(b)
    lock.release(a)
    assert (b.words, c.words) == ([], ["granted"])


def test_a_lock_can_be_given_back_unclean() -> None:
    lock, (a, b, c) = lock_and_clients(3)
    lock.request(a)
    lock.release(a, unclean=True)
    for client in (b, c):
        lock.request(client)
    lock.release(b)
    assert (b.words, c.words) == (["granted!", "wanted"], ["granted"])
    lock.release(b, unclean=True)
    lock.release(c)
    lock.request(b)
    assert b.words == ["granted"], "who does not hold it has no say"


def test_a_gang_tells_its_state() -> None:
    assert Gang().status_frame() == {"t": "gang", "epoch": 0, "broken": ""}
    broken = {"t": "gang", "epoch": 3, "broken": "rank 1 ended"}
    assert Gang(3, broken="rank 1 ended").status_frame() == broken
    assert Gang(3, broken="rank 1 ended", spent="a script has run").status_frame() == broken
    spent = {"t": "gang", "epoch": 3, "broken": "a script has run", "spent": True}
    assert Gang(3, spent="a script has run").status_frame() == spent


def test_a_port_is_kept_for_the_one_who_listens_on_it() -> None:
    port = ReservedPorts("127.0.0.1")
    others = [ReservedPorts("127.0.0.1") for _ in range(50)]
    assert port.number not in {other.number for other in others}
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port.number))
        server.listen()
        with socket.create_connection(("127.0.0.1", port.number), timeout=5):
            pass


def listens_at(number: int) -> bool:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", number))
        server.listen()
        return True


def free(number: int) -> bool:
    with socket.socket() as stranger:
        try:
            stranger.bind(("127.0.0.1", number))
        except OSError:
            return False
        return True


def test_ports_in_a_row_are_kept_for_the_plugins_after_the_first() -> None:
    port = ReservedPorts("127.0.0.1", 12)
    row = range(port.number, port.number + 12)
    others = [ReservedPorts("127.0.0.1", 12) for _ in range(20)]
    assert not {number for other in others for number in range(other.number, other.number + 12)} & set(row)
    assert all(listens_at(number) for number in row)
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(("127.0.0.1", row[5]))
    port.close()
    assert any(free(number) for number in row)  # the others may be somebody's already


def test_rows_of_two_agents_do_not_overlap() -> None:
    ours, others = ReservedPorts("127.0.0.1", 12), ReservedPorts("127.0.0.1")
    others.number = ours.number - 1  # a row that begins before ours, and would reach into it
    assert not others._reserve_following(2)


def test_where_no_row_is_free_the_first_port_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReservedPorts, "_reserve_following", lambda self, count: False)
    assert listens_at(ReservedPorts("127.0.0.1", 12).number)


def test_a_port_of_an_address_of_the_newer_kind() -> None:
    try:
        port = ReservedPorts("::1")
    except OSError as error:
        pytest.skip(f"this machine has no ::1: {error}")
    assert port.number > 0


def test_the_number_of_an_epoch_outlives_the_agent(tmp_path: Path) -> None:
    epochs = EpochFile(tmp_path / "epoch")
    assert epochs.latest == 0
    for number in (1, 12, 7):
        epochs.save(number)
    assert epochs.latest == 12
    assert EpochFile(tmp_path / "epoch").latest == 12


def test_who_waits_is_told_who_has_the_lock() -> None:
    lock, (a, b, c) = lock_and_clients(3)
    for client in (a, b, c):
        lock.request(client)
    assert (a.waits_for, b.waits_for, c.waits_for) == ("", a.peer_name, a.peer_name)
    lock.on_client_gone(a)
    assert c.waits_for == b.peer_name


# How often time alone changes what is shown of pools.

T = 1_800_000_000.0


def beats(pool: PoolView, seconds: int = 10) -> int:
    """How many different ones there are in so many seconds."""
    return len({refresh_token([pool], T + second) for second in range(seconds)})


@pytest.fixture
def pool() -> PoolView:
    view = PoolView("p", created_at=T - 500)
    apply(view, events.PoolOpened(pool="p", spec={"nodes": 1, "worker": {"ranks_per_node": 1}}, created_at=T))
    apply(view, events.NodePhase(pool="p", node=0, phase="ready"))
    apply(view, events.PoolState(pool="p", state="up"))
    return view


def test_a_pool_at_rest_changes_every_ten_seconds_and_one_with_a_run_each_second(pool: PoolView) -> None:
    assert beats(pool) == 1 and beats(pool, 20) == 2
    apply(pool, events.RunOpened(pool="p", run="r", function="f", kind="broadcast", total=1, at=T))
    assert beats(pool) == 10
    apply(pool, events.RunEnded(pool="p", run="r", state="done", at=T))
    assert beats(pool) == 1


@pytest.mark.parametrize("state", ["starting", "stopping"])
def test_what_begins_or_ends_is_timed_by_the_second(pool: PoolView, state: str) -> None:
    apply(pool, events.PoolState(pool="p", state=state))  # type: ignore[arg-type]
    assert beats(pool) == 10


def test_a_machine_on_its_way_or_about_to_go_counts_and_one_that_is_gone_does_not(pool: PoolView) -> None:
    apply(pool, events.NodePhase(pool="p", node=0, phase="gone"))
    assert beats(pool) == 1
    apply(pool, events.NodePhase(pool="p", node=0, phase="connected"))
    assert beats(pool) == 10
    apply(pool, events.NodePhase(pool="p", node=0, phase="ready"))
    apply(pool, events.NodeNotice(pool="p", node=0, kind="terminate", ends_at=T + 90, at=T))
    assert beats(pool) == 10


def test_a_lease_counts_in_its_last_minutes(pool: PoolView) -> None:
    apply(pool, events.LeaseNews(pool="p", ends_at=T + 3600))
    assert beats(pool) == 1
    apply(pool, events.LeaseNews(pool="p", ends_at=T + 300))
    assert beats(pool) == 10


def test_what_is_over_is_at_rest_whatever_it_was_at(pool: PoolView) -> None:
    apply(pool, events.RunOpened(pool="p", run="r", function="f", kind="broadcast", total=1, at=T))
    apply(pool, events.PoolEnded(pool="p", receipt={"gone": [0]}, at=T))
    assert beats(pool) == 1


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "<1m"),
        (59, "<1m"),
        (60, "1m"),
        (3599, "59m"),
        (3600, "1h 00m"),
        (7500, "2h 05m"),
        (270_000, "3d 03h"),
    ],
)
def test_what_is_at_rest_has_an_age_in_minutes(seconds: int, said: str) -> None:
    assert age(seconds) == said


def test_only_the_last_minutes_are_counted_down_by_the_second() -> None:
    assert (time_left(599), time_left(600), time_left(7500)) == ("9:59", "10m", "2h 05m")


# How long a node lives without us, by a clock in the test's hand.


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def test_idle_time_counts_down_from_the_start(clock: Clock) -> None:
    lease = Lease(600, None)
    assert lease.remaining(in_use=False) == 600
    clock.now += 599
    assert lease.remaining(in_use=False) == 1
    clock.now += 2
    assert lease.remaining(in_use=False) == -1
    assert lease.reason() == "nobody used it for 600 s"


def test_use_stops_the_count_and_its_end_starts_it_anew(clock: Clock) -> None:
    lease = Lease(600, None)
    clock.now += 10_000
    assert lease.remaining(in_use=True) is None
    lease.renew()
    assert lease.remaining(in_use=False) == 600
    clock.now += 100
    assert lease.remaining(in_use=False) == 500


def test_a_time_to_live_counts_also_in_use(clock: Clock) -> None:
    lease = Lease(600, 3600)
    assert lease.remaining(in_use=False) == 600
    assert lease.remaining(in_use=True) == 3600
    clock.now += 3500
    lease.renew()
    assert lease.remaining(in_use=True) == lease.remaining(in_use=False) == 100
    assert lease.reason() == "nobody used it for 600 s"
    clock.now += 100
    lease.renew()
    assert lease.remaining(in_use=True) == 0
    assert lease.reason() == "its time to live of 3600 s was over"


def test_a_wall_clock_that_jumps_changes_nothing(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lease(0.5, None)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert lease.remaining(in_use=False) == 0.5
    assert lease.reason() == "nobody used it for 0.5 s"
