"""Pools over SSH on real hosts: what comes up, what travels there, what must not."""

from __future__ import annotations

from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.model.errors import HostKeyError

from . import Lab
from .conftest import MakeLab
from .pools import nothing_runs, pool, ssh


@sky.function
def where() -> tuple[str, int]:
    import socket

    return socket.gethostname(), sky.instance_info().rank


@sky.function
def peers() -> list[str]:
    return [peer.address for peer in sky.instance_info().peers]


def test_four_hosts_and_a_receipt(lab: Lab) -> None:
    with pool(lab, name="four") as compute:
        assert where() @ compute == [(host.name, rank) for rank, host in enumerate(lab.hosts)]
        assert peers() @ compute == [[host.address for host in lab.hosts]] * 4
    assert compute.receipt is not None and compute.receipt.ok
    nothing_runs(lab)
    for host in lab.hosts:
        # Other pools' folders may be there: a host that lost its power keeps them until their lease is over.
        assert not list(host.home.glob(".cache/skyward/pools/four.*"))


@pytest.mark.proof("1 s of a processor")
def test_nothing_of_a_secret_is_left_or_shown(pair: Lab) -> None:
    secret = "s3cr3t-value-of-a-token"
    image = sky.Image(env={"TOKEN": secret})
    with pool(pair, image=image) as compute:
        for host in pair.hosts:
            assert not any(secret in line for line in host.processes().values())
            for path in host.home.rglob("*"):
                assert not path.is_file() or secret.encode() not in path.read_bytes(), path
        assert compute.name


def test_a_changed_host_key_stops_the_next_run_and_nothing_is_sent(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    with pool(lab) as compute:
        assert len(where() @ compute) == 2
    lab.hosts[1].reinstall()
    with pytest.raises(HostKeyError, match="CHANGED"), pool(lab, ssh(lab, host_keys="accept-new")):
        pass
    assert "Accepted" not in lab.hosts[1].log().rpartition("Server listening")[2]
    assert {path.name for path in lab.hosts[1].home.iterdir()} <= {".local"}, "what the lab itself has put there"


@pytest.mark.proof("1 s of a processor")
def test_the_working_folder_travels(pair: Lab) -> None:
    Path("helper_of_mine.py").write_text("ANSWER = 42\n")
    with pool(pair) as compute:
        assert use_helper() @ compute == [42] * 2


@sky.function
def use_helper() -> int:
    import helper_of_mine  # type: ignore[import-not-found]

    return int(helper_of_mine.ANSWER)
