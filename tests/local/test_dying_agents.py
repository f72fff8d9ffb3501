"""Killed, frozen and removed agents: their workers, calls, processes and successors."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.api.attach_and_results import Attached
from skyward_core.node.bootstrap.host_commands import end_agent
from skyward_core.node.bootstrap.host_inspection import (
    NODE_VARIABLE,
    find_node_processes,
    read_environment,
)
from skyward_core.protocol.frame_codec import Decoder, encode_frame
from skyward_core.runtime.instance_info_and_attempt import set_phase
from skyward_core.store.ledger import Ledger
from skyward_core.store.pool_folder import PoolFolder
from skyward_core.transport.background_loop import submit
from tests.support.child import Child, read_line
from tests.support.faults import agent_pids, remove, worker_pids
from tests.support.forked_clients import script
from tests.support.processes import descendants, exists
from tests.support.waiting import wait_until

QUIET = sky.Options(console=False)


@sky.function
def rank() -> int:
    return sky.instance_info().rank


def test_agent_ends_when_its_folder_is_removed(home: Path) -> None:
    client = script(
        home,
        """
        with sky.Compute(nodes=1, options=sky.Options(console=False)) as c:
            print(c.pool.links[0].welcome["pid"], c.pool.context.machines[0].extra["folder"], flush=True)
            time.sleep(600)
        """,
    )
    pid, folder = read_line(client).split()
    workers = descendants(int(pid))
    client.kill()
    client.wait()
    remove(Path(folder).parent)
    wait_until(lambda: not exists(int(pid)), what="the agent's end")
    assert not any(exists(worker) for worker in workers)


def test_agent_after_a_killed_one_adopts_its_workers(home: Path, tmp_path: Path) -> None:
    def work() -> tuple[int, int]:
        rank = sky.instance_info().rank
        for i in range(3):
            print("before", i)
        (tmp_path / f"working-{rank}").touch()
        while not (tmp_path / "go").exists():
            time.sleep(0.01)
        for i in range(3):
            print("after", i)
        return rank, os.getpid()

    with sky.Compute(nodes=2, options=QUIET) as compute:
        workers = worker_pids(compute)
        agents = agent_pids(compute)
        with ThreadPoolExecutor(1) as beside:
            running = beside.submit(lambda: sky.function(work)() @ compute)
            wait_until(lambda: len(list(tmp_path.glob("working-*"))) == 2)
            os.kill(agents[1], signal.SIGKILL)
            wait_until(lambda: agent_pids(compute)[1] != agents[1], what="a new agent")
            (tmp_path / "go").touch()
            results = running.result(90)
        assert [rank for rank, _ in results] == [0, 1]
        assert sorted(pid for _, pid in results) == workers, "the workers went on, none was started anew"
        lines = [f"{word} {i}" for word in ("before", "after") for i in range(3)]
        wait_until(lambda: compute.pool.view.logs.rank(1).lines(0, 99) == lines)
        assert rank() @ compute == [0, 1]
        assert compute.pool.view.state == "up"
    assert compute.receipt is not None
    assert compute.receipt.ok
    assert not any(exists(pid) for pid in workers)


def test_call_lost_with_agent_and_worker_is_reported(home: Path, tmp_path: Path) -> None:
    def hang() -> None:
        (tmp_path / f"hangs-{sky.instance_info().rank}").touch()
        time.sleep(600)

    with sky.Compute(nodes=2, options=QUIET) as compute:
        with ThreadPoolExecutor(1) as beside:
            running = beside.submit(lambda: sky.function(hang)() @ compute)
            wait_until(lambda: len(list(tmp_path.glob("hangs-*"))) == 2)
            agent = agent_pids(compute)[0]
            for pid in [agent, *descendants(agent)]:  # it must not tell of its worker's end before its own
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(sky.RunError, match="rank 0") as caught:
                running.result(90)
        assert caught.value.outcomes[0].kind == "exited"
        assert rank() @ compute == [0, 1]


def test_broadcast_waits_for_the_new_agent_of_a_killed_head_agent(home: Path) -> None:
    with sky.Compute(nodes=2, options=QUIET) as compute:
        assert rank() @ compute == [0, 1]
        head = compute.pool.links[0]
        (agent, _) = agent_pids(compute)
        for pid in [*descendants(agent), agent]:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not head.up or head.welcome["pid"] != agent, what="the link's end")
        assert rank() @ compute == [0, 1]
        assert agent_pids(compute)[0] != agent


def test_frozen_agent_is_reported_and_continues_later(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skyward_core.pool.agent_link.SILENCE", 0.4)
    with sky.Compute(nodes=2, options=QUIET) as compute:
        node = compute.pool.view.nodes[1]
        os.kill(agent_pids(compute)[1], signal.SIGSTOP)
        try:
            wait_until(lambda: node.link_up is False, what="the news that the agent does not answer")
            assert "no answer" in node.link_detail
            running = rank() > compute  # may well go to the frozen node: it waits there
        finally:
            os.kill(agent_pids(compute)[1], signal.SIGCONT)
        wait_until(lambda: node.link_up is True)
        assert running.result(90) in (0, 1)
        assert rank() @ compute == [0, 1]


def test_resumed_agent_does_not_change_rank_phases(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skyward_core.pool.agent_link.SILENCE", 0.4)

    def prepares() -> None:
        set_phase("joining")
        while not (tmp_path / "go").exists():
            time.sleep(0.01)

    def phases() -> list[str]:
        return [phase for phase, _ in compute.pool.view.rank_phases.values()]

    with sky.Compute(nodes=1, options=QUIET) as compute:
        view, (agent,) = compute.pool.view, agent_pids(compute)
        running = sky.function(prepares)() > compute
        wait_until(lambda: phases() == ["joining"])  # of which the agent's greeting told nothing
        os.kill(agent, signal.SIGSTOP)
        try:
            wait_until(lambda: view.nodes[0].link_up is False, what="the news that the agent does not answer")
        finally:
            os.kill(agent, signal.SIGCONT)
        wait_until(lambda: view.nodes[0].link_up is True)
        submit(compute.pool.links[0].ask({"t": "ping"})).result(60)  # what was done with that news is done
        assert phases() == ["joining"]
        (tmp_path / "go").touch()
        running.result(90)


@pytest.mark.proof("2 s of a processor", after=1)
@pytest.mark.parametrize("is_repeated", [False, True], ids=["stopped once", "stopped repeatedly"])
def test_frozen_agent_is_killed_at_teardown(home: Path, monkeypatch: pytest.MonkeyPatch, is_repeated: bool) -> None:
    monkeypatch.setattr("skyward_core.pool.teardown.AGENT_SILENCE_TIMEOUT", 0.5)
    over = threading.Event()
    with sky.Compute(nodes=2, options=QUIET) as compute:
        pids = [agent_pids(compute)[1], *worker_pids(compute)]

        def freeze() -> None:
            while not over.is_set() and exists(pids[0]):
                with suppress(ProcessLookupError):
                    os.kill(pids[0], signal.SIGSTOP)
                time.sleep(0.001)

        holder = threading.Thread(target=freeze)
        os.kill(pids[0], signal.SIGSTOP)
        if is_repeated:
            holder.start()
    over.set()
    assert compute.receipt is not None and compute.receipt.ok
    assert "node 1 did not answer" in str(compute.receipt.notes)
    assert not any(exists(pid) for pid in pids)


BRIEF = sky.Options(console=False, grace=1.0)


def detach(mark: Path, scrub: bool = False) -> None:
    """Start a daemon with two forks and its own session. ``scrub`` removes our environment variables."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            code = f"import os,time;open({str(mark) + '.part'!r},'w').write(str(os.getpid()));"
            code += f"os.rename({str(mark) + '.part'!r},{str(mark)!r});time.sleep(600)"
            os.execve(sys.executable, [sys.executable, "-c", code], {} if scrub else dict(os.environ))
        os._exit(0)
    while not mark.exists():
        time.sleep(0.01)


@pytest.mark.proof("1 s of a processor", after=3)
@pytest.mark.parametrize(
    ("killed", "scrub"), [("nothing", False), ("agent", True), ("agent and workers", False), ("agent", False)]
)
def test_daemon_process_of_a_rank_ends_with_the_pool(home: Path, tmp_path: Path, killed: str, scrub: bool) -> None:
    with sky.Compute(nodes=1, options=BRIEF) as compute:
        sky.function(detach)(tmp_path / "daemon", scrub) >> compute
        pid = int((tmp_path / "daemon").read_text())
        (agent,) = agent_pids(compute)
        if killed == "agent":
            os.kill(agent, signal.SIGKILL)
            wait_until(lambda: agent_pids(compute) != [agent], what="a new agent")
            assert rank() @ compute == [0]
        elif killed == "agent and workers":
            os.kill(agent, signal.SIGSTOP)  # else it would end in order when it sees its worker's end
            for worker in descendants(agent) - {pid}:
                os.kill(worker, signal.SIGKILL)
            os.kill(agent, signal.SIGKILL)
        assert exists(pid), "the daemon belongs to the script while the pool is up"
    assert compute.receipt is not None and compute.receipt.ok
    assert not exists(pid)


def test_forked_child_in_its_own_session_is_not_adopted_as_worker(home: Path, tmp_path: Path) -> None:
    def work() -> int:
        if os.fork() == 0:
            os.setsid()
            (tmp_path / "child").touch()
            time.sleep(600)
            os._exit(0)
        while not (tmp_path / "go").exists():
            time.sleep(0.01)
        return os.getpid()

    with sky.Compute(nodes=1, options=BRIEF) as compute:
        (old,) = agent_pids(compute)
        with ThreadPoolExecutor(1) as beside:
            running = beside.submit(lambda: sky.function(work)() >> compute)
            wait_until((tmp_path / "child").exists)
            os.kill(old, signal.SIGKILL)
            wait_until(lambda: agent_pids(compute) != [old], what="a new agent")
            (tmp_path / "go").touch()
            pid = running.result(60)
        assert sky.function(os.getpid)() >> compute == pid, "the worker is the one that it was"


def leave_unfinished_child(how: str, done: Path) -> str:
    """Fork a child that does not end by itself. ``how`` is what it does instead."""
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
def test_forked_child_that_leaves_the_function_is_no_second_worker(
    home: Path, tmp_path: Path, how: str, status: str, executor: str, process_and_thread_pools: dict[str, sky.Compute]
) -> None:
    compute = process_and_thread_pools[executor]
    done = tmp_path / "done"
    assert sky.function(leave_unfinished_child)(how, done) >> compute == "from the parent"
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


def test_forked_child_that_leaves_a_generator_is_no_second_worker(
    tmp_path: Path, process_and_thread_pools: dict[str, sky.Compute]
) -> None:
    assert list(sky.function(values_of_two)(tmp_path / "done") >> process_and_thread_pools["process"]) == [0, 1, 2]
    assert (tmp_path / "done").read_text() == "0"


def test_exit_of_a_forked_child_does_not_end_its_rank(process_and_thread_pools: dict[str, sky.Compute]) -> None:
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

    assert sky.function(terminates)() >> process_and_thread_pools["process"] == -signal.SIGTERM
    assert rank() >> process_and_thread_pools["process"] == 0


@pytest.fixture(scope="module")
def process_and_thread_pools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, sky.Compute]]:
    """One pool whose workers are processes, and one whose workers are threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKYWARD_HOME", str(tmp_path_factory.mktemp("home")))
        threads = sky.Worker(concurrency=2, executor="thread")
        with (
            sky.Compute(nodes=1, options=BRIEF) as process,
            sky.Compute(nodes=1, options=BRIEF, worker=threads) as thread,
        ):
            yield {"process": process, "thread": thread}


def test_process_pretending_to_be_the_worker_is_rejected(process_and_thread_pools: dict[str, sky.Compute]) -> None:
    """The forged process gets no call, and the worker continues."""
    compute = process_and_thread_pools["process"]
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


def start_unrelated_process(
    *arguments: str, uid: int = 0, env: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        ["/bin/sh", "-c", "echo here; sleep 600; :", "sh", *arguments],
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=env,
        user=uid or None,
    )
    assert process.stdout is not None and process.stdout.readline()
    return process


def worker_arguments_and_environment(compute: sky.Compute) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment of a worker."""
    extra = compute.pool.context.machines[0].extra
    return [extra["socket"] + ".w", extra["folder"], "0", "0"], os.environ | {NODE_VARIABLE: extra["folder"]}


def check(make: Callable[[sky.Compute], subprocess.Popen[bytes]]) -> None:
    with sky.Compute(nodes=1, options=BRIEF) as compute:
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


def test_own_process_naming_the_agent_socket_is_left_alone(home: Path) -> None:
    check(lambda compute: start_unrelated_process(*worker_arguments_and_environment(compute)[0]))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start another user's process")
def test_process_of_another_user_resembling_a_worker_is_left_alone(home: Path) -> None:
    def make(compute: sky.Compute) -> subprocess.Popen[bytes]:
        arguments, env = worker_arguments_and_environment(compute)
        return start_unrelated_process(*arguments, uid=65534, env=env)

    check(make)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be a stranger for a moment")
def test_set_user_id_program_of_another_user_is_no_node_process(tmp_path: Path) -> None:
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


def test_environment_of_a_rank_names_its_node(process_and_thread_pools: dict[str, sky.Compute]) -> None:
    folder = compute_folder(process_and_thread_pools["process"])
    assert sky.function(lambda: os.environ.get(NODE_VARIABLE))() >> process_and_thread_pools["process"] == folder
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


def test_agent_that_is_still_starting_is_ended_too(tmp_path: Path) -> None:
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


PLUGIN = """
    from contextlib import contextmanager
    from skyward_core.plugins import Plugin

    class Hush(Plugin):
        name = "hush"
        def secrets(self):
            return ["of-the-plugin"]
        @contextmanager
        def around_process(self, info):
            os.environ["ENTERED"] = f"by rank {info.rank}"
            yield
"""

MAKER = """
    @sky.function
    def say():
        print("the secret of-the-plugin and of-the-pool", flush=True)

    if __name__ == "__main__":
        image = sky.Image(env={"EXTRA": "1", "MY_TOKEN": "of-the-pool"})
        options = sky.Options(console=CONSOLE, grace=0.5, cluster=CLUSTER)
        with sky.Compute(nodes=NODES, name="left", options=options, image=image, plugins=[PLUGINS]) as compute:
            say() @ compute
            print(([link.welcome["pid"] for link in compute.pool.links]), flush=True)
            time.sleep(600)
"""


BLANKED = "the secret ************* and ***********"


@sky.function
def seen() -> tuple[str | None, str | None, int]:
    return os.environ.get("EXTRA"), os.environ.get("ENTERED"), os.getpid()


def left_behind(
    home: Path, nodes: int, *, cluster: bool = True, plugins: str = "Hush()", console: bool = False
) -> list[int]:
    """Return the agents of a pool whose creator was killed."""
    text = textwrap.dedent(PLUGIN) + textwrap.dedent(MAKER)
    given = {"NODES": nodes, "CLUSTER": cluster, "CONSOLE": console, "PLUGINS": plugins}
    for name, value in given.items():
        text = text.replace(name, str(value))
    client = script(home, text)
    while not (line := read_line(client)).startswith("["):
        pass  # what the rank printed
    agents: list[int] = json.loads(line)
    client.kill()
    client.communicate()
    (row,) = Ledger().live_pools()
    for log in PoolFolder(row.key).folder.rglob("r*.out"):
        log.unlink()  # as if it had died before that came: the agents show it to the next client
    return agents


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)  # so that none sees the end of another
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(exists(pid) for pid in pids), what="their end")


def replace_workers(compute: sky.Compute | Attached) -> None:
    """End the ranks' processes, and wait until their agents have noticed."""
    pids = [pid for _, _, pid in seen() @ compute]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), what="their end")


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("cluster", [True, False], ids=["gang", "standalone"])
def test_new_agent_gets_plugins_and_environment_from_another_node(home: Path, cluster: bool) -> None:
    agents = left_behind(home, 2, cluster=cluster)
    kill(agents[1], *descendants(agents[1]))
    with sky.attach("left") as compute:
        assert compute.pool.links[1].welcome["pid"] != agents[1]
        assert [each[:2] for each in seen() @ compute] == [("1", "by rank 0"), ("1", "by rank 1")]
        assert compute.pool.view.detail == ""
        # What the ranks printed before is shown by the new agent as the old one would have.
        shown = [compute.pool.view.logs.rank(rank) for rank in (0, 1)]
        wait_until(lambda: all(log.lines(0, 9) for log in shown), what="what was printed")
        assert {line for log in shown for line in log.lines(0, 9)} == {BLANKED}
        assert compute.down().ok


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("cluster", [True, False], ids=["gang", "standalone"])
def test_new_agent_gets_plugins_and_environment_from_its_workers(home: Path, cluster: bool) -> None:
    (agent,) = left_behind(home, 1, cluster=cluster)
    kill(agent)
    with sky.attach("left") as compute:
        replace_workers(compute)
        assert [each[:2] for each in seen() @ compute] == [("1", "by rank 0")]
        assert compute.pool.view.detail == ""
        shown = compute.pool.view.logs.rank(0)
        wait_until(lambda: shown.lines(0, 9), what="what was printed")
        assert shown.lines(0, 9) == [BLANKED]
        assert compute.down().ok


def test_lost_plugins_and_environment_are_reported(home: Path) -> None:
    (agent,) = left_behind(home, 1)
    kill(agent, *descendants(agent))
    with sky.attach("left") as compute:
        assert "environment variables lost (EXTRA, MY_TOKEN)" in compute.pool.view.detail
        with pytest.raises(sky.RunError, match="The pool's plugins are lost"):
            seen() @ compute
        assert compute.down().ok


def test_pool_without_plugins_continues_without_its_environment(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (agent,) = left_behind(home, 1, plugins="", console=True)
    kill(agent, *descendants(agent))
    with sky.attach("left") as compute:
        assert [each[:2] for each in seen() @ compute] == [(None, None)]
        assert compute.down().ok
    assert "pool left: environment variables lost (EXTRA, MY_TOKEN)" in capsys.readouterr().err


def test_worker_that_reconnects_too_late_leaves_the_gang(home: Path) -> None:
    with sky.Compute(options=sky.Options(console=False)) as compute, ThreadPoolExecutor() as thread:
        ((*_, worker),) = seen() @ compute
        (agent,) = agent_pids(compute)
        os.kill(worker, signal.SIGSTOP)
        os.kill(agent, signal.SIGKILL)
        wait_until(lambda: agent_pids(compute) != [agent], what="a new agent")
        result = thread.submit(lambda: seen() @ compute)
        wait_until(lambda: compute.pool.links[0].epoch, what="a new gang")
        os.kill(worker, signal.SIGCONT)
        ((*_, after),) = result.result(60)
        assert after != worker
        assert not exists(worker)


@sky.function(timeout=1.5)
def sits(begun: Path) -> None:
    begun.touch()
    time.sleep(600)


def test_timeout_of_a_call_outlives_its_agent(home: Path, tmp_path: Path) -> None:
    with sky.Compute(nodes=1, options=sky.Options(console=False, grace=0.5)) as compute:
        (agent,) = agent_pids(compute)
        seen() @ compute  # what a worker has told just before is told again to the new agent
        future = sits(tmp_path / "begun") > compute
        wait_until((tmp_path / "begun").exists, what="that it runs")
        kill(agent)
        with pytest.raises(sky.RunError, match="ran longer than its timeout"):
            future.result(20)
        assert agent_pids(compute) != [agent]
