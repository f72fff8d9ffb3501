"""Discovery and killing of real processes: groups, escaped processes and orphans."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skyward_core.node.agent import worker_processes
from skyward_core.node.bootstrap import host_commands, host_inspection
from tests.support.processes import exists
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="by /proc")

# A leader with a child in its group and one that left for a session of its own; tells their ids.
FAMILY = """
import os, sys, time
inside = os.fork()
if inside == 0:
    time.sleep(600)
left, leaves = os.pipe()
outside = os.fork()
if outside == 0:
    os.setsid()
    os.write(leaves, b"!")
    time.sleep(600)
os.read(left, 1)
print(inside, outside, flush=True)
time.sleep(600)
"""


@pytest.fixture
def process_family() -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    leader = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert leader.stdout is not None
    inside, outside = map(int, leader.stdout.readline().split())
    yield leader, inside, outside
    worker_processes.kill_all([leader.pid, inside, outside])
    leader.communicate()


def test_signal_group_signals_only_its_process_group(process_family: tuple[subprocess.Popen[str], int, int]) -> None:
    leader, inside, outside = process_family
    worker_processes.signal_group(leader.pid, signal.SIGKILL)
    wait_until(lambda: not exists(inside), what="its child is in the group")
    assert leader.wait() == -signal.SIGKILL
    assert exists(outside)
    worker_processes.signal_group(leader.pid, signal.SIGKILL)  # nothing of the group is left
    worker_processes.kill_all([outside, outside, leader.pid])
    wait_until(lambda: not exists(outside), what="killed")


REAPER = """
import os, sys, time
from skyward_core.node.agent.worker_processes import become_reaper, kill_all, reap
from tests.support.processes import descendants
assert become_reaper()
if os.fork() == 0:          # a rank ...
    if os.fork() == 0:      # ... whose child left its session, and then the rank ends
        os.setsid()
        time.sleep(600)
    os._exit(7)
ended = {}
while not ended:
    ended |= reap()
    time.sleep(0.005)
assert [os.waitstatus_to_exitcode(status) for status in ended.values()] == [7], ended
while len(left := descendants(os.getpid())) != 1:
    time.sleep(0.005)
assert [int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1]) for pid in left] == [os.getpid()]
kill_all(left)
ended = {}
while descendants(os.getpid()):
    ended |= reap()
    time.sleep(0.005)
assert {pid: os.WTERMSIG(status) for pid, status in ended.items()} == {left.pop(): 9}, ended
assert reap() == {}
print("clean")
"""


@pytest.mark.parametrize("python", ["", "import _ctypes; del _ctypes.call_function\n"])
def test_reaper_ends_processes_that_left_their_group(python: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", python + REAPER],
        cwd=Path(__file__).parents[2],  # it imports what tests share
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "clean\n", done.stderr


def test_process_writing_to_a_removed_node_folder_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "node-0"
    folder.mkdir()
    with (folder / "agent.err").open("w") as errors:
        child = subprocess.Popen(["sleep", "600"], stderr=errors)
    try:
        shutil.rmtree(folder)
        assert host_inspection.find_node_processes(str(folder)) == [child.pid]
        assert host_inspection.find_node_processes(str(tmp_path / "node")) == []
    finally:
        child.kill()
        child.wait()
    assert host_inspection.find_node_processes(str(folder)) == []


def test_processes_with_the_node_variable_and_descendants_are_found(tmp_path: Path) -> None:
    folder, outer = str(tmp_path / "node:0"), str(tmp_path / "a-node-it-runs-in")
    code = "import os, subprocess\nprint(subprocess.Popen(['sleep', '600'], env={}).pid, flush=True)\ninput()"
    marks = {host_inspection.NODE_VARIABLE: f"{outer}:{folder}"}
    child = subprocess.Popen(
        [sys.executable, "-c", code], env=marks, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    below = int(child.stdout.readline())
    try:
        assert host_inspection.find_node_processes(folder) == sorted([child.pid, below])
        assert host_inspection.find_node_processes(outer) == sorted([child.pid, below])
        assert (
            host_inspection.find_node_processes("/of/a/node")
            == host_inspection.find_node_processes(str(tmp_path))
            == []
        )
    finally:
        worker_processes.kill_all([child.pid, below])
        child.communicate()


def test_hosts_that_accept_or_refuse_a_connection_are_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert host_commands.probe_hosts([("127.0.0.1", port), ("host.invalid", port)], 5.0) == [True, False]
    assert host_commands.probe_hosts([("127.0.0.1", port)], 5.0) == [True]


def test_process_start_time_is_empty_after_its_end() -> None:
    child = subprocess.Popen(["sleep", "600"])
    when = worker_processes.process_start_time(child.pid)
    assert int(when) >= int(worker_processes.process_start_time(os.getpid()))
    child.kill()
    wait_until(lambda: not exists(child.pid), what="killed")
    assert worker_processes.process_start_time(child.pid) == "", "it has ended, reaped or not"
    child.wait()
    assert worker_processes.process_start_time(child.pid) == ""


def test_kill_groups_kills_named_groups_but_not_its_own(process_family: tuple[subprocess.Popen[str], int, int]) -> None:
    leader, inside, outside = process_family
    ours = subprocess.Popen(["sleep", "600"])
    host_commands.kill_groups([inside, ours.pid])
    assert leader.wait() == ours.wait() == -signal.SIGKILL
    wait_until(lambda: not exists(inside), what="it was named")
    assert exists(outside)
