"""Pools over SSH: startup, transfers, and hosts with quirks."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.client.session import Session
from skyward_core.model.errors import HostKeyError, PoolError
from skyward_core.model.machines_checks_and_gpu_use import Check
from skyward_core.model.specs import Interpreter
from skyward_core.providers.aws.ec2_ssh_transport import Ec2Transport, HostKeyFile
from skyward_core.tasks.python_compatibility import MINOR_VERSION
from skyward_core.transport.ssh.host_address_and_python import Target
from tests.support.one_host import Reports, config, greet
from tests.support.pythons import another_python

from . import Host, HostOptions, Lab
from .conftest import MakeLab
from .pools import DEADLINE, Client, nothing_runs, pool, ssh, until


@sky.function
def where() -> tuple[str, int]:
    import socket

    return socket.gethostname(), sky.instance_info().rank


@sky.function
def peers() -> list[str]:
    return [peer.address for peer in sky.instance_info().peers]


def test_four_ssh_hosts_run_all_ranks_and_end_with_a_receipt(lab: Lab) -> None:
    with pool(lab, name="four") as compute:
        assert where() @ compute == [(host.name, rank) for rank, host in enumerate(lab.hosts)]
        assert peers() @ compute == [[host.address for host in lab.hosts]] * 4
    assert compute.receipt is not None and compute.receipt.ok
    nothing_runs(lab)
    for host in lab.hosts:
        # Other pools' folders may be there: a host that lost its power keeps them until their lease is over.
        assert not list(host.home.glob(".cache/skyward/pools/four.*"))


def test_changed_host_key_stops_the_next_run_and_nothing_is_sent(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    with pool(lab) as compute:
        assert len(where() @ compute) == 2
    lab.hosts[1].reinstall()
    with pytest.raises(HostKeyError, match="CHANGED"), pool(lab, ssh(lab, host_keys="accept-new")):
        pass
    assert "Accepted" not in lab.hosts[1].log().rpartition("Server listening")[2]
    assert {path.name for path in lab.hosts[1].home.iterdir()} <= {".local"}, "what the lab itself has put there"


# This library's way to hosts that have never seen it: what they start with first, the rest when nobody waits.


@sky.function
def provider_of_its_own() -> str:
    import skyward_core

    return repr(skyward_core.SSH(["a", "b"]))


def has_rest(host: Host) -> bool:
    return any(host.home.glob(".cache/skyward/bundle-*-rest/all.zip"))


def test_rest_of_the_bundle_is_sent_on_request_or_when_the_client_leaves(pair: Lab) -> None:
    first, second = pair.hosts
    for host in pair.hosts:
        host.wipe_home()
    options = sky.Options(console=False)
    with sky.Compute(provider=ssh(pair, [first]), options=options) as compute:
        assert not has_rest(first)
        (text,) = provider_of_its_own() @ compute
        assert "SSH(" in text and has_rest(first)

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
    """Return the number of hosts: 18 in proofs, 128 on a machine with eight cores, fewer if memory is short."""
    cores = len(os.sched_getaffinity(0))
    meminfo = Path("/proc/meminfo").read_text()
    free = int(meminfo.partition("MemAvailable:")[2].split()[0]) << 10
    return max(4, min(128 if cores >= 8 else WANTED, free // MEMORY))


@pytest.mark.proof("3 s of a processor")
def test_many_ssh_hosts_run_with_few_file_descriptors(make_lab: MakeLab, proofs: bool) -> None:
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


HOME = "/run/home/.cache/skyward"
BIN = "/run/home/bin"


def checked(lab: Lab, **wishes: Any) -> list[Check]:
    """Return the checks of the hosts by ``skyward-tui doctor``."""
    return asyncio.run(ssh(lab, **wishes).check())


@pytest.mark.proof("3 s of a processor", after=1)
@pytest.mark.parametrize(
    "options",
    [
        HostOptions(max_sessions=2, max_startups="2", unix_forwarding=False, tcp_forwarding=False),
        HostOptions(names="gone"),
        HostOptions(banner="Welcome.\nBe nice.\n", startup="echo noise; echo more >&2; sleep 2"),
        HostOptions(max_sessions=2),
        HostOptions(unix_forwarding=False, tcp_forwarding=False),
    ],
    ids=["all limits", "no names", "noisy slow shell", "MaxSessions 2", "no forwarding"],
)
def test_ssh_hosts_with_unusual_settings_work(make_lab: MakeLab, options: HostOptions) -> None:
    lab = make_lab(2, options)
    with pool(lab) as compute:
        assert where() @ compute == [(host.name, rank) for rank, host in enumerate(lab.hosts)]
        assert len(where() @ compute) == 2
    assert compute.receipt is not None and compute.receipt.ok
    assert {check.state for check in checked(lab)} <= {"ok", "warn"}


@pytest.mark.proof("1 s of a processor")
def test_full_login_queue_of_a_host_is_waited_for(make_lab: MakeLab) -> None:
    lab = make_lab(1, HostOptions(max_startups="2"))
    with ExitStack() as others, ThreadPoolExecutor(1) as beside:
        for _ in range(2):  # who have not logged in yet
            link = others.enter_context(socket.create_connection((lab.hosts[0].address, 22), timeout=20))
            assert link.recv(4) == b"SSH-"
        compute = pool(lab)
        try:
            coming = beside.submit(compute.__enter__)
            until(lambda: "MaxStartups" in start_progress(compute) or coming.done(), "the reason to be shown")
            assert not coming.done()
        finally:
            others.close()
        coming.result(DEADLINE)
        try:
            assert where() @ compute == [(lab.hosts[0].name, 0)]
        finally:
            compute.__exit__(None, None, None)
    assert compute.receipt is not None and compute.receipt.ok


def start_progress(compute: sky.Compute) -> str:
    """Return the shown progress of a pool that is starting."""
    held = compute._pool
    return "" if held is None else " ".join(node.detail for node in held.view.nodes)


@sky.function
def talks(path: str) -> None:
    import time
    from pathlib import Path

    while not Path(path).exists():
        print("a line", flush=True)
        time.sleep(0.1)


@pytest.mark.proof("2 s of a processor")
@pytest.mark.parametrize("offset", [7200, -7200])
def test_host_clock_two_hours_off_is_warned_about_and_works(make_lab: MakeLab, offset: int) -> None:
    """A printing rank is not silent although its clock is behind."""
    lab = make_lab(2, hosts={1: HostOptions(clock_offset=offset)})
    with pool(lab) as compute:
        run, view = talks("/tmp/enough").on_all(compute), compute.pool.view
        until(lambda: all(view.logs.for_run(run.run).rank(rank).end for rank in (0, 1)), "lines of both")
        now = time.time()
        assert [view.activity.unusual_silence(run.run, rank, now - 9000, now) for rank in (0, 1)] == [None, None]
        for host in lab.hosts:
            host.run("touch /tmp/enough")
        run.result()
        assert [name for name, _ in where() @ compute] == [host.name for host in lab.hosts]
    assert compute.receipt is not None and compute.receipt.ok
    clocks = {line.subject: line for line in checked(lab) if "clock" in line.detail}
    assert clocks[lab.hosts[0].address].state == "ok"
    assert clocks[lab.hosts[1].address].state == "warn"
    off = int(clocks[lab.hosts[1].address].detail.partition("clock is ")[2].split()[0])
    assert 7000 < off <= 7201 and ("ahead" if offset > 0 else "behind") in clocks[lab.hosts[1].address].detail


def test_ssh_host_without_python_is_named(make_lab: MakeLab) -> None:
    lab = make_lab(2, hosts={1: HostOptions(has_python=False)})
    expected = (
        rf"Host {lab.hosts[1].address}: the chosen interpreter python3 is not a working Python .*it has no Python"
    )
    # The client's own interpreter lies on a disk that hosts of the lab share, so another one is asked for.
    with pytest.raises(PoolError, match=expected), pool(lab, ssh(lab, python="python3")):
        pass


# It stands for the network: what it gives is the shape of uv's own installer, and a uv that has one Python to give.
CURL = """#!/bin/sh
test "$4" = https://astral.sh/uv/install.sh || exit 22
cat > "$3" << 'END'
test -n "$UV_UNMANAGED_INSTALL" || exit 1
mkdir -p "$UV_UNMANAGED_INSTALL"
printf '#!/bin/sh\\ntest "$1 $2" != "python find" || echo PYTHON\\n' > "$UV_UNMANAGED_INSTALL/uv"
chmod +x "$UV_UNMANAGED_INSTALL/uv"
END
"""


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("answers", ["all", "another", "nobody", "no index"])
def test_machine_without_matching_python_installs_one(
    answers: str, make_lab: MakeLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = make_lab(1, HostOptions(has_python=False, startup=f"PATH={BIN}:$PATH"))
    (host,) = lab.hosts
    # Of a project, whose Python lies where no host has one.
    another = Interpreter(another_python().path, "/nowhere", another_python().version, ".venv of project train")
    elsewhere = replace(another, path="/nowhere/bin/python").describe()
    for name in ("curl", "wget"):
        file = host.home / "bin" / name
        file.parent.mkdir(exist_ok=True)
        works = answers != "nobody" and name == "curl"
        curl = CURL.replace("PYTHON", another.path if answers == "another" else sys.executable)
        if answers == "no index":
            curl = curl.replace('test "$1 $2" !=', "echo error: no index answers >&2; exit 2 #")
        file.write_text(curl if works else "#!/bin/sh\necho no way >&2; exit 6\n")
        file.chmod(0o755)
    # Hosts of the lab share the disk on which the client's own interpreter lies.
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    own_key = HostKeyFile(tmp_path / "key")
    own_key.write("its own")
    target = Target(host.address, user=lab.user, keys=(str(lab.key),), known_hosts=str(lab.known_hosts), config=False)

    async def prepared() -> Reports:
        transport = Ec2Transport(target, "p.0", own_key, python=None, patience=DEADLINE)
        reports = Reports()
        try:
            await transport.prepare(config(interpreter=elsewhere) if answers == "another" else config(), reports)
            assert (await greet(transport))["pool"] == "p"
            channel = await transport.channel()
            await channel.ask("end", folder=transport.folder, socket=channel.facts["socket"])
        finally:
            await transport.close()
        return reports

    if answers in ("all", "another"):
        prepared_info = asyncio.run(prepared())
        minor = another.minor if answers == "another" else MINOR_VERSION
        assert f"no Python {minor} on {host.address}; downloading uv" in prepared_info.of("running")
        assert f"Python {minor}" in prepared_info.of("connected")
        assert (host.home / ".local/bin/uv").exists()
    elif answers == "no index":
        message = r"has no Python .*, and its uv cannot install one: .*error: no index answers.*python=\. Nothing"
        for _ in range(2):  # the next one finds that uv there
            with pytest.raises(PoolError, match=message) as caught:
                asyncio.run(prepared())
            assert "install.sh" not in str(caught.value)
    else:
        with pytest.raises(PoolError, match=r"has no Python .* Installing uv there failed: .*no way"):
            asyncio.run(prepared())


def test_full_home_is_replaced_by_another_folder(make_lab: MakeLab) -> None:
    lab = make_lab(1, HostOptions(home_mb=64))
    lab.hosts[0].fill_disk()
    # The home has no room: the pool lives in the next place that has some.
    with pool(lab) as compute:
        assert where() @ compute == [(lab.hosts[0].name, 0)]
    assert compute.receipt is not None and compute.receipt.ok


def test_host_with_a_full_disk_is_named(make_lab: MakeLab) -> None:
    lab = make_lab(2, HostOptions(home_mb=64))
    full = lab.hosts[1]
    full.fill_disk()
    for folder in ("/tmp", "/var/tmp"):  # one disk for all, full: as on a machine with a single partition
        full.run(f"mount -t tmpfs -o size=4k tmpfs {folder}; dd if=/dev/zero of={folder}/filler bs=4k || true")
    expected = rf"Host {full.address} has no writable folder .*{HOME}.*(No space left|MB free).*Free some space"
    with pytest.raises(PoolError, match=expected), pool(lab):
        pass
    failed = [line for line in checked(lab) if line.state == "fail"]
    assert [line.subject for line in failed] == [full.address]
    assert HOME in failed[0].detail
