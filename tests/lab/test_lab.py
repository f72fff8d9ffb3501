"""The lab: isolation of its hosts, its power and cable switches, and its cleanup."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

import pytest

from . import Host, Lab, LabError, missing
from .conftest import MakeLab
from .tools import started_at, wait_until

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.proof("3 s of a processor, for what tests stand on")


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


def test_ended_lab_leaves_no_process_link_folder_or_mount(can_lab: None) -> None:
    with Lab(2) as lab:
        name, folder = lab.hosts[0].name.partition("-")[0], lab.folder
        machines = [host.machine for host in lab.hosts]
    links = json.loads(subprocess.check_output(["ip", "-json", "link", "show"]))
    wait_until(lambda: not any(map(started_at, machines)), "the end of the hosts")
    assert not [link for link in links if link["ifname"].startswith((f"{name}p", f"{name}c"))]
    assert not folder.exists()
    assert str(folder) not in Path("/proc/self/mounts").read_text()
