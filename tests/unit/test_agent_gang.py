"""The order in which clients may start gang runs, and the rendezvous' port."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from skyward_core.node.agent.gang_queue_and_fail_fast import GangLock
from skyward_core.node.agent.gang_state import EpochFile, Gang, ReservedPorts


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
