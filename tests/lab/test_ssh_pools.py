"""Pools over SSH on real hosts: what comes up, what travels there, what must not."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.client.session import Session
from skyward_core.model.errors import HostKeyError

from . import Host, Lab
from .conftest import MakeLab
from .pools import Client, nothing_runs, pool, ssh


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


# This library's way to hosts that have never seen it: what they start with first, the rest when nobody waits.


@sky.function
def provider_of_its_own() -> str:
    import skyward_core

    return repr(skyward_core.SSH(["a", "b"]))


def has_rest(host: Host) -> bool:
    return any(host.home.glob(".cache/skyward/bundle-*-rest/all.zip"))


def test_a_rank_that_asks_for_the_rest_gets_it_and_who_leaves_the_pool_sends_it_first(pair: Lab) -> None:
    first, second = pair.hosts
    for host in pair.hosts:
        host.wipe_home()
    options = sky.Options(console=False)
    with sky.Compute(provider=ssh(pair, [first]), options=options) as compute:
        assert not has_rest(first)
        (said,) = provider_of_its_own() @ compute
        assert "SSH(" in said and has_rest(first)

    session = Session()
    pool = session.create(sky.PoolSpec(name="left", provider=ssh(pair, [second]), nodes=1, options=options))
    name = pool.result(120).name
    session.detach()
    assert has_rest(second)
    for rest in second.home.glob(".cache/skyward/bundle-*-rest"):
        shutil.rmtree(rest)  # as where the client had been killed before
    with sky.attach(name):
        pass
    assert has_rest(second)
    again = Session()
    assert again.tear_down(name).result(120).ok
    again.detach()


# Many hosts, and few file descriptors on the client.


WANTED = 18  # more than the 16 that are seen to at once, and all that two cores have time for
FEW = 6  # but for proofs
MEMORY = 120 << 20  # bytes for one host: its sshd, an agent, a rank, and the rank that is started ahead


def how_many() -> int:
    """Of proofs: 18 hosts; 128 on a machine of eight cores; fewer where the memory does not take them."""
    cores = len(os.sched_getaffinity(0))
    meminfo = Path("/proc/meminfo").read_text()
    free = int(meminfo.partition("MemAvailable:")[2].split()[0]) << 10
    return max(4, min(128 if cores >= 8 else WANTED, free // MEMORY))


def test_many_hosts_come_up_answer_and_go_with_few_descriptors(make_lab: MakeLab, proofs: bool) -> None:
    count = how_many() if proofs else FEW
    if proofs and count < WANTED:
        warnings.warn(f"this machine has the memory for {count} hosts, not for {WANTED}", stacklevel=1)
    lab = make_lab(count)
    descriptors = min(256, 24 + 3 * count)  # an idle client has 11, and each host costs it 2
    with Client(
        lab,
        f"""
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, ({descriptors}, {descriptors}))
        @sky.function
        def where(word):
            import socket
            return word, socket.gethostname(), sky.instance_info().rank
        quiet["start_timeout"] = 300.0
        with sky.Compute(provider=ssh, options=sky.Options(**quiet)) as compute:
            for word in ("first", "second"):
                values = where(word) @ compute
                assert [(said, rank) for said, _, rank in values] == [(word, r) for r in range({count})], values
            names = [name for _, name, _ in values]
        print(json.dumps([names, compute.receipt.to_json()]), flush=True)
        """,
    ) as client:
        out, err = client.process.communicate(timeout=300)
    assert client.process.returncode == 0, err
    names, receipt = json.loads(out)
    assert names == [host.name for host in lab.hosts]
    assert receipt["created"] == count and len(receipt["gone"]) == count and not receipt["unaccounted"]
