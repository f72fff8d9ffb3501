"""Other users of a host: their files are never trusted or run, and their processes block nothing."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import skyward_core
import skyward_core as sky
from skyward_core.client.session import Session
from skyward_core.node.bootstrap.host_inspection import NODE_VARIABLE
from skyward_core.pool.rank_inspection_and_debugger import send_to_debugger
from skyward_core.protocol.frame_codec import encode_frame
from skyward_core.transport.background_loop import submit
from skyward_core.transport.bundle_builder import bundle
from skyward_core.views.stack_groups_and_profiles import group_stacks

from . import Host, HostOptions, Lab
from .conftest import MakeLab
from .pools import DEADLINE, pool, rank, until

STRANGER = 65534
THEIRS = "/var/tmp/skyward-0"

# Makes a pool's folder, as an agent would have it that lives, and a bundle whose modules leave a mark when they run.
PLANT = """
import fcntl, json, os, sys, time
root, folder, bundle, *modules = sys.argv[1:]
place = os.path.join(root, "pools", folder)
os.makedirs(place)
code = "import os\\nos.close(os.open('/tmp/owned', os.O_CREAT))\\ndef do(*all): return {}\\n"
for module in modules:
    path = os.path.join(root, bundle, module)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, "w").write(code)
json.dump({"pid": os.getpid(), "socket": os.path.join(place, "agent.sock")}, open(place + "/agent.json", "w"))
lock = open(os.path.join(place, "agent.lock"), "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("planted", flush=True)
time.sleep(600)
"""


def modules() -> list[str]:
    """Return the modules that a node may be asked to run, as paths in a bundle."""
    package = Path(skyward_core.__file__).parent
    return sorted(str(path.relative_to(package.parent)) for path in (package / "node").rglob("*.py"))


def as_stranger(host: Host, code: str, *arguments: str, env: str = "") -> None:
    """Run Python as another user of the host, until the host's end. Waits for its first line."""
    host.run(
        f"cat > /tmp/stranger.py <<'END'\n{code}\nEND\n"
        "rm -f /tmp/said; touch /tmp/said; chmod 666 /tmp/said; "
        f"setpriv --reuid {STRANGER} --regid {STRANGER} --clear-groups env {env} "
        f"python3 -I /tmp/stranger.py {' '.join(arguments)} >/tmp/said 2>&1 </dev/null & "
        "for i in $(seq 300); do test -s /tmp/said && break; sleep 0.05; done"
    )
    assert host.run("cat /tmp/said") == "planted\n"


def test_folder_of_another_user_is_neither_trusted_nor_run(make_lab: MakeLab) -> None:
    # The home cannot be written, so that pools live below /var/tmp or /tmp, where everybody may make folders.
    lab = make_lab(1, HostOptions(home_writable=False))
    (host,) = lab.hosts
    host.run(f"setpriv --reuid {STRANGER} --regid {STRANGER} --clear-groups mkdir -m 777 {THEIRS}; chmod 1777 /tmp")
    with pool(lab) as compute:
        assert rank() @ compute == [0]
        folder = compute.pool.context.machines[0].extra["folder"]
        assert host.run(f"ls /tmp/skyward-0/pools/{folder}")
        as_stranger(host, PLANT, THEIRS, folder, bundle().name, *modules())
    # What the stranger holds says that the pool lives on, and who believed it would run the stranger's code to end it.
    assert compute.receipt is not None and compute.receipt.ok
    assert host.run("ls /tmp | grep -c owned || true").strip() == "0"
    assert host.run("ls /tmp/skyward-0/pools").strip() == ""


# Takes the place of a pool that a start of the host has swept away, and notes what it is told.
LISTEN = """
import os, socket, sys
place = os.path.join(sys.argv[1], "pools", sys.argv[2])
os.umask(0)
os.makedirs(place)
open(place + "/agent.json", "w").write("{}")
agent = socket.socket(socket.AF_UNIX)
agent.bind(place + "/agent.sock")
agent.listen()
print("planted", flush=True)
line, _ = agent.accept()
open("/tmp/heard", "wb").write(line.recv(65536))
"""


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("forwarding", [True, False])
def test_folder_of_another_user_after_a_reboot_receives_nothing(make_lab: MakeLab, forwarding: bool) -> None:
    lab = make_lab(1, HostOptions(home_writable=False, unix_forwarding=forwarding))
    (host,) = lab.hosts
    with pool(lab) as compute:
        assert rank() @ compute == [0]
        (link,) = compute.pool.links
        folder = compute.pool.context.machines[0].extra["folder"]
        assert host.run(f"ls {THEIRS}/pools/{folder}"), "ours, this time"
        lab.client.unplug()
        host.power_off()
        host.power_on()
        as_stranger(host, LISTEN, THEIRS, folder)
        lab.client.plug()
        until(lambda: link.gone or host.run("ls /tmp | grep heard || true"), "the end of the node")
        assert host.run("cat /tmp/heard 2>/dev/null || true") == ""
    assert compute.receipt is not None and compute.receipt.ok


HOLD = """
import sys, time
print("planted", flush=True)
time.sleep(600)
"""


def test_process_of_another_user_with_the_pool_socket_delays_no_teardown(make_lab: MakeLab) -> None:
    lab = make_lab(1)
    (host,) = lab.hosts
    with pool(lab) as compute:
        assert rank() @ compute == [0]
        facts = compute.pool.links[0].transport._facts  # type: ignore[attr-defined]
        place = f"{facts['root']}/pools/{compute.pool.context.machines[0].extra['folder']}"
        as_stranger(host, HOLD, facts["socket"] + ".w", "0", "0", env=f"{NODE_VARIABLE}={place}")
    assert compute.receipt is not None and compute.receipt.ok
    assert compute.receipt.seconds < 30, "nobody waited for the stranger"
    strangers = [line for line in host.processes().values() if "stranger.py" in line]
    assert len(strangers) == 1, "and nobody ended it"
    until(lambda: len(host.processes()) == 1, "the end of all else")


# Asks the pool's agent for the stacks of its ranks.
ASKS = """
import socket, sys
print("planted", flush=True)
try:
    agent = socket.socket(socket.AF_UNIX)
    agent.connect(sys.argv[1])
    agent.sendall(bytes.fromhex(sys.argv[2]))
    agent.settimeout(5)
    said = agent.recv(65536)
except OSError as error:
    said = type(error).__name__.encode()
open("/tmp/heard", "wb").write(said)
"""


def test_other_user_gets_no_stacks_but_a_second_client_does(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    host, _ = lab.hosts
    with pool(lab) as compute, ThreadPoolExecutor() as beside:
        running = beside.submit(lambda: waits("/tmp/go") @ compute)
        facts = compute.pool.links[0].transport._facts  # type: ignore[attr-defined]
        asked = encode_frame({"t": "hello"}) + encode_frame({"t": "stacks", "id": 1, "signal": True})
        as_stranger(host, ASKS, facts["socket"], asked.hex())
        until(lambda: host.run("cat /tmp/heard 2>/dev/null || true"), "the end of the stranger's attempt")
        assert host.run("cat /tmp/heard") == "PermissionError"
        session = Session()
        try:

            def rank_groups() -> list[str]:
                # The hosts' ranks may have no py-spy: then they are asked by the signal.
                run = next(iter(compute.pool.view.runs), None)
                if run is None:  # it is only about to begin
                    return []
                found = group_stacks(session.stacks(compute.name, run, signal=True).result(60))
                return [each.ranks for each in found if each.frames and each.frames[-1].function == "waits"]

            until(lambda: rank_groups() == ["0-1"], "both stacks, which are equal")
        finally:
            session.detach()
            for each in lab.hosts:
                each.run("touch /tmp/go")
        assert running.result(60) == [0, 1]


@sky.function
def waits(file: str) -> int:
    while not Path(file).exists():
        time.sleep(0.05)
    return sky.instance_info().rank


# A rank on a host waits at a breakpoint. Other users of the host cannot debug the rank, and it continues once the cable
# of the debugging client is disconnected.


# As another user of the host.
OTHER_USER = """
import os, socket, sys
os.setgid(60001), os.setuid(60001)
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])
except PermissionError:
    print("refused")
"""


@sky.function(timeout=3)
def job() -> str:
    value = "secret"
    if sky.instance_info().rank == 1:
        breakpoint()
        (Path.home() / "went_on").touch()
    while not (Path.home() / "enough").exists():  # the other rank waits, too
        time.sleep(0.02)
    return value


@pytest.mark.proof("2 s of a processor")
def test_paused_rank_refuses_other_users_and_continues_after_a_pulled_cable(pair: Lab) -> None:
    host = pair.hosts[1]
    with pool(pair, options={"debug_wait": 60}) as compute, ThreadPoolExecutor(1) as beside:
        view, context = compute.pool.view, compute.pool.context
        try:
            running = beside.submit(lambda: job() @ compute)
            until(lambda: view.rank_phases.get(1, ("",))[0] == "paused", "that it stands still")
            (host.home / "stranger.py").write_text(OTHER_USER)
            (found,) = host.run("find $HOME /tmp /var/tmp -type s -name 'debug.*' 2>/dev/null || true").split()
            assert host.run(f"python3 -I stranger.py {found}") == "refused\n"
            text, over = submit(send_to_debugger(context, 1, "me")).result(DEADLINE)
            while b"(Pdb)" not in text:
                more, over = submit(send_to_debugger(context, 1, "me")).result(DEADLINE)
                text += more
            assert not over
            time.sleep(3.5)  # longer than the limit of both ranks
            assert not running.done()
            pair.client.unplug()
            until(lambda: (host.home / "went_on").exists(), "that it goes on without anybody")
            for each in pair.hosts:
                (each.home / "enough").touch()
            pair.client.plug()
            assert running.result(DEADLINE) == ["secret"] * 2
        finally:
            pair.client.plug()
            for each in pair.hosts:
                for name in ("enough", "went_on", "stranger.py"):
                    (each.home / name).unlink(missing_ok=True)
