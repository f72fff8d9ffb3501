"""What user code forks, and what an agent that was killed has left: each is taken for what it is, and ends with the
pool."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.node.bootstrap.host_commands import end_agent
from skyward_core.node.bootstrap.host_inspection import NODE_VARIABLE, find_node_processes, read_environment
from skyward_core.protocol.frame_codec import Decoder, encode_frame
from tests.support.child import Child
from tests.support.faults import agent_pids
from tests.support.processes import descendants, exists
from tests.support.waiting import wait_until

QUIET = sky.Options(console=False, grace=1.0)


@sky.function
def rank() -> int:
    return sky.instance_info().rank


def detach(mark: Path, scrub: bool = False) -> None:
    """Leave a daemon as daemons do: two forks and a session of its own; ``scrub``: without our environment."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            code = f"import os,time;open({str(mark) + '.part'!r},'w').write(str(os.getpid()));"
            code += f"os.rename({str(mark) + '.part'!r},{str(mark)!r});time.sleep(600)"
            os.execve(sys.executable, [sys.executable, "-c", code], {} if scrub else dict(os.environ))
        os._exit(0)
    while not mark.exists():
        time.sleep(0.01)


@pytest.mark.parametrize("scrub", [False, True], ids=["marked", "only its output is ours"])
def test_a_daemon_does_not_survive_the_receipt_although_its_agent_was_killed(
    home: Path, tmp_path: Path, scrub: bool
) -> None:
    with sky.Compute(nodes=1, options=QUIET) as compute:
        sky.function(detach)(tmp_path / "daemon", scrub) >> compute
        pid = int((tmp_path / "daemon").read_text())
        (old,) = agent_pids(compute)
        os.kill(old, signal.SIGKILL)
        wait_until(lambda: agent_pids(compute) != [old], what="a new agent")
        assert rank() @ compute == [0]
        assert exists(pid), "as long as the pool is up, it is the script's affair"
    assert compute.receipt is not None and compute.receipt.ok
    assert not exists(pid)


def test_a_daemon_does_not_survive_the_receipt_where_agent_and_workers_were_killed(home: Path, tmp_path: Path) -> None:
    with sky.Compute(nodes=1, options=QUIET) as compute:
        sky.function(detach)(tmp_path / "daemon") >> compute
        pid = int((tmp_path / "daemon").read_text())
        (agent,) = agent_pids(compute)
        os.kill(agent, signal.SIGSTOP)  # else it would end in order when it sees its worker's end
        for worker in descendants(agent) - {pid}:
            os.kill(worker, signal.SIGKILL)
        os.kill(agent, signal.SIGKILL)
    assert compute.receipt is not None and compute.receipt.ok
    assert not exists(pid)


def test_a_forked_child_in_a_session_of_its_own_is_not_taken_for_the_worker(home: Path, tmp_path: Path) -> None:
    def work() -> int:
        if os.fork() == 0:
            os.setsid()
            (tmp_path / "child").touch()
            time.sleep(600)
            os._exit(0)
        while not (tmp_path / "go").exists():
            time.sleep(0.01)
        return os.getpid()

    with sky.Compute(nodes=1, options=QUIET) as compute:
        (old,) = agent_pids(compute)
        with ThreadPoolExecutor(1) as beside:
            running = beside.submit(lambda: sky.function(work)() >> compute)
            wait_until((tmp_path / "child").exists)
            os.kill(old, signal.SIGKILL)
            wait_until(lambda: agent_pids(compute) != [old], what="a new agent")
            (tmp_path / "go").touch()
            pid = running.result(60)
        assert sky.function(os.getpid)() >> compute == pid, "the worker is the one that it was"


def falls_out(how: str, done: Path) -> str:
    """Forks a child that does not end by itself; ``how`` says what it does in place of that."""
    import atexit

    if (child := os.fork()) == 0:
        atexit.register((done.with_suffix(".atexit")).touch)
        if how == "raises":
            raise ValueError("in the child")
        if how == "exits":
            sys.exit(3)
        return "from the child"
    done.write_text(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
    return "from the parent"


@pytest.mark.parametrize(("how", "status"), [("returns", "0"), ("raises", "1"), ("exits", "3")])
@pytest.mark.parametrize("executor", ["process", "thread"])
def test_a_forked_child_that_falls_out_of_the_function_is_no_second_worker(
    home: Path, tmp_path: Path, how: str, status: str, executor: str, shared: dict[str, sky.Compute]
) -> None:
    compute = shared[executor]
    done = tmp_path / "done"
    assert sky.function(falls_out)(how, done) >> compute == "from the parent"
    assert done.read_text() == status
    assert done.with_suffix(".atexit").exists()
    assert rank() >> compute == 0
    errors = compute.pool.archive.logs / "r000.err"
    wait_until(lambda: how != "raises" or b"ValueError: in the child" in errors.read_bytes())


def values_of_two(done: Path) -> Iterator[int]:
    yield 0
    child = os.fork()
    if child:
        done.write_text(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
    yield 1
    yield 2


def test_nor_is_one_that_falls_out_of_a_generator(tmp_path: Path, shared: dict[str, sky.Compute]) -> None:
    assert list(sky.function(values_of_two)(tmp_path / "done") >> shared["process"]) == [0, 1, 2]
    assert (tmp_path / "done").read_text() == "0"


def test_the_end_of_a_forked_child_is_not_the_rank_s(shared: dict[str, sky.Compute]) -> None:
    def terminates() -> int:
        import multiprocessing

        from skyward_core.node.worker import stop_signal

        stop_signal.NATIVE_CODE_TIMEOUT = 0.05  # seconds in which a rank that got the signal itself would be ended
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        child.start()
        child.terminate()
        child.join()
        time.sleep(0.3)
        assert child.exitcode is not None
        return child.exitcode

    assert sky.function(terminates)() >> shared["process"] == -signal.SIGTERM
    assert rank() >> shared["process"] == 0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, sky.Compute]]:
    """A pool of worker processes and one of threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKYWARD_HOME", str(tmp_path_factory.mktemp("home")))
        threads = sky.Worker(concurrency=2, executor="thread")
        with (
            sky.Compute(nodes=1, options=QUIET) as process,
            sky.Compute(nodes=1, options=QUIET, worker=threads) as thread,
        ):
            yield {"process": process, "thread": thread}


def test_who_greets_as_a_worker_is_known_by_the_kernel(shared: dict[str, sky.Compute]) -> None:
    """A process says that it is the worker; it gets no call, and the worker goes on."""
    compute = shared["process"]
    pid = sky.function(os.getpid)() >> compute
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(30)
        line.connect(compute.pool.context.machines[0].extra["socket"] + ".w")
        line.sendall(encode_frame({"t": "hello", "pid": pid}))
        heard = b""
        while data := line.recv(1 << 16):
            heard += data
    assert [header["t"] for header, _ in Decoder().feed(heard)] == ["exit"]
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(30)
        line.connect(compute.pool.context.machines[0].extra["socket"] + ".w")
        line.sendall(encode_frame({"t": "outcome", "run": "x", "i": 0, "kind": "returned"}))
        assert line.recv(1 << 16) == b"", "who has not greeted is not heard"
    assert sky.function(os.getpid)() >> compute == pid


def bystander(*arguments: str, uid: int = 0, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        ["/bin/sh", "-c", "echo here; sleep 600; :", "sh", *arguments],
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=env,
        user=uid or None,
    )
    assert process.stdout is not None and process.stdout.readline()
    return process


def beside(compute: sky.Compute) -> tuple[list[str], dict[str, str]]:
    """The arguments and the environment of a worker."""
    extra = compute.pool.context.machines[0].extra
    return [extra["socket"] + ".w", extra["folder"], "0", "0"], os.environ | {NODE_VARIABLE: extra["folder"]}


def check(make: Callable[[sky.Compute], subprocess.Popen[bytes]]) -> None:
    with sky.Compute(nodes=1, options=QUIET) as compute:
        process = make(compute)
        (agent,) = agent_pids(compute)
        for pid in (agent, *descendants(agent) - {process.pid}):
            os.kill(pid, signal.SIGKILL)
    try:
        assert compute.receipt is not None and compute.receipt.ok
        assert process.poll() is None
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_process_of_ours_that_names_the_socket_is_neither_waited_for_nor_ended(home: Path) -> None:
    check(lambda compute: bystander(*beside(compute)[0]))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start another user's process")
def test_nor_is_a_stranger_s_that_looks_like_a_worker_in_all(home: Path) -> None:
    def make(compute: sky.Compute) -> subprocess.Popen[bytes]:
        arguments, env = beside(compute)
        return bystander(*arguments, uid=65534, env=env)

    check(make)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be a stranger for a moment")
def test_a_stranger_s_set_user_id_program_with_our_mark_is_nobody_of_ours(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    program = Path("/tmp", f"skyward-test-{os.getpid()}")  # which a stranger can reach
    shutil.copy(shutil.which("sleep") or "", program)
    program.chmod(0o4755)
    folder = str(tmp_path / "node")
    try:
        for uid, expected in ((65534, False), (0, True)):
            with subprocess.Popen([program, "600"], env={NODE_VARIABLE: folder}, user=uid) as process:
                try:
                    wait_until(partial(read_environment, process.pid))
                    assert (process.pid in find_node_processes(folder)) == expected
                finally:
                    process.kill()
    finally:
        program.unlink()


def test_a_rank_s_environment_names_its_node(shared: dict[str, sky.Compute]) -> None:
    folder = compute_folder(shared["process"])
    assert sky.function(lambda: os.environ.get(NODE_VARIABLE))() >> shared["process"] == folder
    assert json.loads((Path(folder) / "agent.json").read_text())["pid"] in find_node_processes(folder)


def compute_folder(compute: sky.Compute) -> str:
    return str(compute.pool.context.machines[0].extra["folder"])


# An agent that is just starting: it holds its folder, and has not said so.
STARTING = """
import fcntl, json, os, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
lock = open(folder / "agent.lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.readline()
os.dup2(os.open(folder / "agent.err", os.O_WRONLY | os.O_CREAT), 2)
(folder / "part").write_text(json.dumps({"pid": os.getpid()}))
(folder / "part").replace(folder / "agent.json")
time.sleep(600)
"""


def test_an_agent_that_is_just_starting_is_ended_too(tmp_path: Path) -> None:
    folder = tmp_path / "node-0"
    (folder / "spool").mkdir(parents=True)
    command = [sys.executable, "-c", STARTING, str(folder)]
    with (
        Child(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent,
        ThreadPoolExecutor(1) as beside,
    ):
        assert agent.stdin is not None and agent.stdout is not None
        assert agent.stdout.readline() == "locked\n"
        ending = beside.submit(end_agent, folder, str(tmp_path / "sock"), 60.0)
        agent.stdin.write("\n")
        agent.stdin.close()
        ending.result(60)
        assert agent.wait(60) == -signal.SIGTERM
    assert not folder.exists()
