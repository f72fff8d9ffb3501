"""The lab: isolation of its hosts, its power and cable switches, and its cleanup."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter, time

import pytest

from skyward_core.transport.ssh.asyncssh_patches import asyncssh
from tests.support.child import Child

from . import DelayProxy, Host, HostOptions, Lab, LabError, missing
from .conftest import MakeLab
from .registry import claims
from .tools import started_at, wait_until

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.proof("3 s of a processor, for what tests stand on")


async def connect(lab: Lab, host: Host, port: int = 22, address: str = "") -> asyncssh.SSHClientConnection:
    return await asyncssh.connect(
        address or host.address,
        port,
        username=lab.user,
        client_keys=[str(lab.key)],
        known_hosts=str(lab.known_hosts) if not address else None,
        config=None,
    )


def ssh(lab: Lab, host: Host, command: str) -> subprocess.CompletedProcess[str]:
    words = ["ssh", "-F", str(lab.ssh_config), "-o", "BatchMode=yes", host.name, command]
    return subprocess.run(words, capture_output=True, text=True, timeout=20)


def test_lab_hosts_have_separate_home_tmp_and_processes(lab: Lab) -> None:
    first, second = lab.hosts[:2]
    mark = f"mine-{secrets.token_hex(4)}"
    first.run(f"touch ~/{mark} /tmp/{mark} /var/tmp/{mark} /run/{mark} /dev/shm/{mark}")
    (first.home / mark).unlink()
    assert mark not in second.run("ls ~ /tmp /var/tmp /run /dev/shm")
    assert not Path("/tmp", mark).exists()
    assert len(second.run("cat /proc/[0-9]*/comm").splitlines()) <= 3
    assert first.run(f"{sys.executable} -c 'import asyncssh, sys; print(sys.prefix)'").strip() == sys.prefix


def test_lab_hosts_have_no_default_route(lab: Lab) -> None:
    assert "default" not in lab.hosts[0].run("ip route")


def test_lab_power_cut_kills_all_processes_and_closes_no_connection(lab: Lab) -> None:
    host = lab.hosts[0]
    host.run("touch ~/kept /tmp/lost; setsid sleep 600 >/dev/null 2>&1 &")
    wait_until(lambda: bool(host.processes()), "the sleeper")  # in the middle of its exec it has no command line
    (sleeper,) = host.processes()
    with socket.create_connection((host.address, 22), timeout=5) as link:
        assert link.recv(4) == b"SSH-"
        host.power_off()
        assert started_at(sleeper) is None and not host.is_on
        link.settimeout(0.2)
        while True:  # what came before the cut may still be read; then there is silence, not an end
            try:
                assert link.recv(4096) != b""
            except TimeoutError:
                break
    with pytest.raises(LabError, match="is off"):
        host.run("true")
    host.power_on()
    listed = ssh(lab, host, "ls ~ /tmp").stdout.split()
    assert listed[:2] == ["/run/home:", "kept"]
    assert "lost" not in listed
    (host.home / "kept").unlink()


async def test_lab_connection_survives_a_pulled_cable(lab: Lab) -> None:
    host = lab.hosts[1]
    async with await connect(lab, host) as connection:
        process = await connection.create_process("cat")
        process.stdin.write("one\n")
        assert await process.stdout.readline() == "one\n"
        host.unplug()
        process.stdin.write("two\n")
        with socket.socket() as probe:
            probe.settimeout(0.2)
            with pytest.raises(OSError):
                probe.connect((host.address, 22))
        host.plug()
        assert await process.stdout.readline() == "two\n"
    lab.client.unplug()
    with socket.socket() as probe:
        probe.settimeout(0.2)
        with pytest.raises(OSError):
            probe.connect((lab.hosts[2].address, 22))
    lab.client.plug()
    assert ssh(lab, lab.hosts[2], "echo back").stdout == "back\n"


def test_rate_limit_of_the_lab_client_applies_to_the_sum_of_hosts(lab: Lab) -> None:
    megabytes, mbit = 2, 80

    def send(host: Host) -> None:
        words = ["ssh", "-F", str(lab.ssh_config), host.name, "cat >/dev/null"]
        subprocess.run(words, input=os.urandom(megabytes * 1_000_000), check=True, timeout=30)

    lab.client.limit_rate(mbit)
    with ThreadPoolExecutor(2) as pool:
        began = perf_counter()
        list(pool.map(send, lab.hosts[:2]))
        taken = perf_counter() - began
    assert taken > 2 * megabytes * 8 / mbit * 0.9  # nothing goes through a cable faster than it can


def test_lab_proxy_delays_keeps_order_and_cuts(lab: Lab) -> None:
    host = lab.hosts[3]
    data = os.urandom(500_000)
    with DelayProxy(host.address, 22, delay=0.03, jitter=0.02) as proxy:
        words = ["ssh", "-F", str(lab.ssh_config), "-p", str(proxy.port), "-o", "HostName=127.0.0.1"]
        words += ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
        words += [host.name, "sha256sum"]
        began = perf_counter()
        done = subprocess.run(words, input=data, capture_output=True, timeout=30)
        assert done.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest(), done.stderr
        assert perf_counter() - began > 2 * proxy.delay
        with socket.create_connection((proxy.address, proxy.port), timeout=5) as link:
            assert link.recv(4) == b"SSH-"
            proxy.cut()
            with pytest.raises(ConnectionResetError):
                while link.recv(4096):
                    pass


async def test_lab_host_options_take_effect(make_lab: MakeLab) -> None:
    lab = make_lab(
        7,
        hosts={
            0: HostOptions(banner="Welcome to hell", startup="echo noise"),
            1: HostOptions(max_sessions=2, unix_forwarding=False, tcp_forwarding=False),
            2: HostOptions(has_python=False),
            3: HostOptions(home_writable=False),
            4: HostOptions(home_mb=2),
            5: HostOptions(names="gone"),
            6: HostOptions(max_startups="2"),
        },
    )
    loud, strict, bare, frozen, full, nameless, shy = lab.hosts

    done = ssh(lab, loud, "echo word")
    assert done.stdout == "noise\nword\n" and "Welcome to hell" in done.stderr

    async with await connect(lab, strict) as connection:
        processes = [await connection.create_process("cat") for _ in range(2)]
        with pytest.raises(asyncssh.ChannelOpenError):
            await connection.create_process("cat")
        with pytest.raises(asyncssh.ChannelOpenError):
            await connection.open_connection("127.0.0.1", 22)
        with pytest.raises(asyncssh.ChannelOpenError):
            await connection.open_unix_connection("/run/none")
        for process in processes:
            process.stdin.write_eof()

    assert ssh(lab, bare, "command -v python3 python uv; command -v ls").stdout == "/usr/bin/ls\n"
    assert "Read-only file system" in ssh(lab, frozen, "touch ~/file").stderr
    full.fill_disk()
    assert "No space left" in ssh(lab, full, "echo more > ~/file").stderr
    full.free_disk()
    assert ssh(lab, full, "echo more > ~/file").returncode == 0
    names = nameless.run("getent hosts localhost; getent hosts $(hostname) || echo none", timeout=60)
    assert names.split()[1:] == ["localhost", "none"]

    links = [socket.create_connection((shy.address, 22), timeout=5) for _ in range(4)]
    banners = [link.recv(4) for link in links]
    assert banners.count(b"SSH-") == 2
    for link in links:
        link.close()


def test_lab_host_clock_can_be_two_hours_off(make_lab: MakeLab) -> None:
    try:
        lab = make_lab(1, HostOptions(clock_offset=7200))
    except LabError as error:
        if "cc" in str(error):
            pytest.skip(f"no C compiler to bend the clock with: {error}")
        raise
    here = time()
    done = ssh(lab, lab.hosts[0], f"date +%s; {sys.executable} -c 'import time; print(time.time())'")
    assert all(7190 < float(there) - here < 7260 for there in done.stdout.split()), done


def test_two_concurrent_labs_do_not_collide(lab: Lab, make_lab: MakeLab) -> None:
    other = make_lab(1)
    assert other.hosts[0].name != lab.hosts[0].name
    assert other.client.address != lab.client.address
    assert ssh(other, other.hosts[0], "hostname").stdout.strip() == other.hosts[0].name
    assert ssh(lab, lab.hosts[0], "hostname").stdout.strip() == lab.hosts[0].name


def test_lab_of_a_killed_owner_is_removed_by_the_next_start(can_lab: None, make_lab: MakeLab) -> None:
    code = (
        "import os, signal, sys; from tests.lab import Lab; lab = Lab(1).__enter__(); "
        "print(lab.folder, lab.hosts[0].machine, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=20)
    folder, machine = done.stdout.split()
    assert done.returncode == -signal.SIGKILL
    make_lab(1)
    assert started_at(int(machine)) is None
    # The new lab may have taken the dead one's number, and with it the same paths: but they are its own.
    assert Path("/proc/self/mounts").read_text().count(f"{folder}/h0/home ") <= 1


def test_lab_without_root_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert missing() == "the lab needs root (network namespaces, mounts)"
    with pytest.raises(LabError, match="needs root"), Lab(1):
        pass


def test_lab_command_starts_and_removes_hosts(can_lab: None) -> None:
    command = [sys.executable, "-m", "tests.lab"]
    with Child([*command, "up", "1"], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        output = "".join(process.stdout.readline() for _ in range(7))
        login = next(line for line in output.splitlines() if line.startswith("log in:")).split()[2:]
        assert subprocess.run([*login, "true"], timeout=20).returncode == 0
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert all(lab.owner.pid != process.pid for lab in claims())


def test_ended_lab_leaves_no_process_link_folder_or_mount(can_lab: None) -> None:
    with Lab(2) as lab:
        name, folder = lab.hosts[0].name.partition("-")[0], lab.folder
        machines = [host.machine for host in lab.hosts]
    links = json.loads(subprocess.check_output(["ip", "-json", "link", "show"]))
    wait_until(lambda: not any(map(started_at, machines)), "the end of the hosts")
    assert not [link for link in links if link["ifname"].startswith((f"{name}p", f"{name}c"))]
    assert not folder.exists()
    assert str(folder) not in Path("/proc/self/mounts").read_text()


def test_lab_hosts_are_added_and_removed_one_by_one(lab: Lab) -> None:
    """The added host has private folders, a second name for root and a command before sshd."""
    first = lab.add(
        HostOptions(
            private=("/etc", "/usr"),
            second_root="ubuntu",
            before_sshd="mkdir -p $HOME/ubuntu; echo made > /usr/made; touch /etc/made",
            variables={"OF_LOGINS": "a b"},
        ),
        name="newcomer",
    )
    first.power_on()
    words = ["ssh", "-F", "none", "-i", str(lab.key), "-o", "StrictHostKeyChecking=no"]
    words += ["-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", f"ubuntu@{first.address}"]
    asked = [*words, "echo $USER $(hostname) $OF_LOGINS; cat /usr/made; getent hosts newcomer"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=20)
    name, made, known = done.stdout.splitlines()
    assert (name, made, known.split()[0]) == ("ubuntu newcomer a b", "made", first.address), done.stderr
    assert not Path("/usr/made").exists() and not Path("/etc/made").exists()
    lab.remove(first)
    assert not first.root.exists() and first not in lab.hosts
    second = lab.add()
    assert second.address != first.address  # nobody takes one for the other
    lab.remove(second)
