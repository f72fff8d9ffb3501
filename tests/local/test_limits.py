"""Full disks of ranks and client, an unwritable ledger, and large results."""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import count, filterfalse, islice
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.client.session import Session
from skyward_core.model.errors import FAILED, UsageError
from skyward_core.pool import teardown
from skyward_core.store import ledger
from skyward_core.store.ledger import Ledger
from tests.support.cli import COMMAND, PATIENCE, Cli
from tests.support.faults import agent_pids, worker_pids
from tests.support.full_disk import fill
from tests.support.loaded_calls import build_task
from tests.support.processes import exists
from tests.support.waiting import wait_until

QUIET = sky.Options(console=False)


@contextmanager
def mounted_disk(folder: Path, options: str) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("making a small disk needs root")
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def small_home(home: Path) -> Iterator[Path]:
    with mounted_disk(home, "size=256k,mode=700"):
        yield home


def test_full_spool_disk_is_named_and_the_pool_can_end(home: Path) -> None:
    def flood() -> None:
        for _ in range(1000):
            print("x" * 50_000)

    def big() -> bytes:
        return b"y" * 30_000_000

    with mounted_disk(home / "local", "size=16m"), sky.Compute(nodes=2, options=QUIET) as compute:
        with pytest.raises(sky.RunError, match=r"disk under node \d's spool is full") as caught:
            sky.function(flood)() @ compute
        assert "\n" not in str(caught.value)
        assert isinstance(caught.value.__cause__, OSError)
        with pytest.raises(sky.RunError, match="spool is full"):
            sky.function(big)() >> compute
    assert compute.receipt is not None
    assert compute.receipt.ok


# The client's own disk and ledger: full for a moment, or in another process's hands.


LIMIT = 1 << 20  # bytes; the ledger stays below it


@sky.function
def chatter(lines: int) -> None:
    for number in range(lines):
        print(f"{number:09d}", "x" * 89)


@contextmanager
def full_disk() -> Iterator[None]:
    """Limit the size of files that this process writes. Nodes that already run are not affected."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_logs_refused_by_a_full_client_disk_are_fetched_again(home: Path) -> None:
    with sky.Compute(nodes=1, options=sky.Options(console=False)) as compute:
        spool = Path(compute.pool.context.machines[0].extra["folder"], "spool", "r000.out")
        file = compute.pool.archive.logs / "r000.out"
        with full_disk():
            chatter(20_000) >> compute
            wait_until(lambda: compute.pool.news.log_receiver.shown.get("r000.out") == 2_000_000, what="all lines")
            assert file.stat().st_size <= LIMIT
        chatter(10) >> compute
        wait_until(lambda: file.stat().st_size == 2_001_000, what="the rest of the log")
        assert file.read_bytes() == spool.read_bytes()
    assert compute.receipt is not None
    assert compute.receipt.notes == ()


def test_logs_never_saved_on_a_full_disk_are_named_in_the_receipt(home: Path) -> None:
    with ExitStack() as disk, sky.Compute(nodes=1, options=sky.Options(console=False)) as compute:
        disk.enter_context(full_disk())
        chatter(20_000) >> compute
        file = compute.pool.archive.logs / "r000.out"
    assert compute.receipt is not None
    missing = 2_000_000 - file.stat().st_size
    message = f"{missing} bytes of the logs of node 0 could not be written to {file.parent}"
    assert compute.receipt.notes == (message,)
    assert b"\0" not in file.read_bytes()


def test_locked_ledger_does_not_delay_runs(home: Path) -> None:
    with sky.Compute(nodes=1, options=sky.Options(console=False)) as compute:
        chatter(1) >> compute
        other = sqlite3.connect(home / "ledger.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        chatter(1) >> compute
        wait_until(lambda: compute.pool.news.records._failing_since is not None, what="a try to write it down")
        for _ in range(4):
            chatter(1) >> compute
        waited = time.monotonic() - began
        other.execute("ROLLBACK")
        other.close()
        assert waited < 9, "one wait for the ledger takes ten seconds"
        token = compute.pool.row.token
        wait_until(lambda: [run.state for run in Ledger().runs(token)] == ["done"] * 6, what="what was put off")


# A ledger that cannot be written when a pool is left: what exists is ended all the same, and both is said.


Break = Callable[[], Callable[[], None]]  # breaks the ledger, and gives what mends it


@pytest.fixture(params=["locked", "full"])
def fault(request: pytest.FixtureRequest, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Break]:
    monkeypatch.setattr(ledger, "LOCK_TIMEOUT", 0.1)
    monkeypatch.setattr(teardown, "WRITE", 0.3)
    with ExitStack() as stack:
        if request.param == "full":
            stack.enter_context(mounted_disk(home, "size=16m,mode=700"))
            for name in ("local", "pools"):  # elsewhere: the nodes' end would make room for the ledger
                home.with_name(name).mkdir()
                (home / name).symlink_to(home.with_name(name))
            yield lambda: fill(home / "full")
        else:
            yield lambda: lock(home / "ledger.db")


def lock(path: Path) -> Callable[[], None]:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    return other.close


def test_machines_are_ended_although_the_ledger_cannot_be_written(fault: Break) -> None:
    with pytest.raises(sky.TeardownError) as caught, sky.Compute(nodes=2, name="unwritten") as compute:
        pids = agent_pids(compute) + worker_pids(compute)
        mend = fault()
    assert pids
    assert not any(exists(pid) for pid in pids)
    assert "created 2, verified gone 2, unaccounted 0; not saved: the ledger" in str(caught.value)
    mend()
    assert [row.name for row in Ledger().live_pools()] == ["unwritten"]
    with closing(_Looking()) as session:
        assert not any(pool.is_live for pool in session.refresh().result(60))
    assert Ledger().live_pools() == []


def test_exception_of_the_block_is_raised_beside_a_ledger_failure(
    fault: Break, capfd: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as stack:
        with pytest.raises(ZeroDivisionError), sky.Compute(nodes=1, name="both") as compute:
            pids = agent_pids(compute)
            stack.callback(fault())
            raise ZeroDivisionError
        assert not any(exists(pid) for pid in pids)
        assert "not saved: the ledger" in capfd.readouterr().err


class _Looking(Session):
    def close(self) -> None:
        self.detach()


SCRIPT = "import skyward_core as sky\n\n@sky.function\ndef f() -> None: ...\n"


def test_full_disk_while_loading_a_script_is_named(small_home: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert build_task(script, "f", {}).name == "f"
    empty = fill(small_home / "full")
    with pytest.raises(UsageError, match=rf"the disk of {small_home}/tasks is full"):
        build_task(script, "f", {})
    empty()
    assert build_task(script, "f", {}).name == "f"


def test_state_folder_that_cannot_hold_folders_is_named(small_home: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    (small_home / "tasks").write_text("somebody's file")
    with pytest.raises(UsageError, match=rf"no folder can be created in {small_home}/tasks: "):
        build_task(script, "f", {})


READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'


@pytest.mark.proof("3 s of a processor")
def test_pool_is_listed_and_torn_down_with_a_read_only_home(cli: Cli) -> None:
    if os.geteuid() != 0:
        pytest.skip("a read-only home needs root")

    def read_only(*words: str) -> tuple[int, str]:
        """Run a command in a mount namespace where the home is read-only. Agents run outside."""
        command = ["unshare", "-m", "--propagation", "private", "sh", "-c", READ_ONLY, cli.env["SKYWARD_HOME"]]
        done = subprocess.run(
            [*command, *COMMAND, *words], cwd=cli.folder, env=cli.env, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE,
        )  # fmt: skip
        assert "nothing can be recorded, because the ledger cannot be written" in done.stdout
        assert "Traceback" not in done.stdout
        return done.returncode, done.stdout

    cli("run", "endings.py:fine", "--pool", "p", "--keep")
    run = cli("run", "endings.py:waits", "-a", "marker=x", "--pool", "p", "--detach").stderr.split()[1].strip(":")
    for words, shown in ((("ls",), run), (("results", run), "running"), (("logs", run), "new output cannot be saved")):
        status, text = read_only(*words)
        assert status == 0 and shown in text, text
    status, text = read_only("down", "p", "-y")
    assert status == 3, text
    assert "pool p is down, but the ledger could not be updated" in text and "verified gone 1" in text
    assert "pool p is down: created 1, verified gone 1" in cli("down", "p", "-y").stderr, "recorded now"


def test_node_with_too_few_open_files_is_refused_with_the_limit(cli: Cli) -> None:
    done = subprocess.run(
        ["sh", "-c", 'ulimit -n 100 && exec "$@"', "sh", *COMMAND, "run", "endings.py:fine", "--ranks-per-node", "16"],
        cwd=cli.folder, env=cli.env, text=True, check=False, capture_output=True, timeout=PATIENCE,
    )  # fmt: skip
    assert "node 0 needs at least 128 open files for its ranks, but is limited to 100" in done.stderr, done.stderr
    assert "ulimit -Hn 128" in done.stderr
    assert (done.returncode, cli.pools()) == (1, {})


def limit_free_descriptors(agent: int, free: int) -> None:
    """Allow an agent that many descriptors more than it uses now."""
    used = {int(each.name) for each in Path(f"/proc/{agent}/fd").iterdir()}
    limit = next(islice(filterfalse(used.__contains__, count()), free, None))
    resource.prlimit(agent, resource.RLIMIT_NOFILE, (limit, limit))


def test_agent_without_free_descriptors_sends_outcomes_and_rejects_other_clients_with_the_limit(home: Path) -> None:
    def logs() -> str:
        sky.log(loss=1.0)  # its file is new to the agent
        return "logged"

    with sky.Compute(options=QUIET) as compute:
        assert sky.function(os.getpid)() >> compute
        limit_free_descriptors(agent_pids(compute)[0], 0)
        assert sky.function(logs)() >> compute == "logged"
        with pytest.raises(sky.SkywardError, match=r"cannot accept connections: .* \(ulimit -n"):
            sky.attach(compute.pool.name)
        assert sky.function(logs)() >> compute == "logged", "the pool is unharmed"


LIMITED = """
import json, os, resource, signal, sys
from contextlib import suppress
import skyward_core as sky
from pathlib import Path
from tests.support.faults import agent_pids, worker_pids

def threads():
    users = [(task, task.stat().st_uid) for task in Path("/proc").glob("[0-9]*/task/*")]
    return sum(user == os.getuid() for _, user in users)

def failure(compute):
    for _ in range(20):  # the first calls may meet workers that are just being killed
        try:
            sky.function(os.getpid)() @ compute
        except sky.SkywardError as error:
            text = str(error)
            if "SIGKILL" not in text:
                return text
    return "no failure by the limit"

failures, stacks = [], None
with sky.Compute(worker=sky.Worker(ranks_per_node=4), options=sky.Options(console=False)) as compute:
    sky.function(os.getpid)() @ compute
    (agent,) = agent_pids(compute)
    others = threads() - sum(len(os.listdir(f"/proc/{worker}/task")) for worker in worker_pids(compute))
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    for limit in others, others + 7, others:  # for no worker, for the workers without their threads, for no worker
        resource.prlimit(agent, resource.RLIMIT_NPROC, (limit, hard))
        stacks = stacks or compute.stacks()
        for worker in worker_pids(compute):
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        failures.append(failure(compute))
print(json.dumps([failures, [each.why for each in stacks.ranks]]))
"""


def run_as_user(folder: Path, uid: int, *command: str) -> subprocess.CompletedProcess[str]:
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    os.chown(folder, uid, uid)
    rights = "-all,+dac_override,+dac_read_search"  # this interpreter may be in root's home
    user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    return subprocess.run(
        [*user, f"--inh-caps={rights}", f"--ambient-caps={rights}", *command], cwd=folder,
        env=os.environ | {"HOME": str(folder), "SKYWARD_HOME": f"{folder}/home"},
        capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip


@pytest.mark.proof("1 s of a processor")
@pytest.mark.parametrize("limit", [3, 2, 6])  # for no agents, for no thread of a child, for one agent
def test_command_without_free_processes_names_the_limit_and_leaves_nothing(tmp_path: Path, limit: int) -> None:
    (tmp_path / "f.py").write_text("import skyward_core as sky\n@sky.function\ndef f(): ...\n")
    limited = ["prlimit", f"--nproc={limit}", *COMMAND]
    done = run_as_user(tmp_path, 54320 - limit, *limited, "run", "f.py", "--nodes", "2")
    assert done.returncode == FAILED and "Raise the limit of processes (ulimit -u" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert "no pools are up" in run_as_user(tmp_path, 54320 - limit, *COMMAND, "ls").stdout


@pytest.mark.proof("1.5 s of a processor")
def test_user_without_free_processes_gets_failures_that_name_the_limit(tmp_path: Path) -> None:
    done = run_as_user(tmp_path, 54321, sys.executable, "-c", LIMITED)
    assert done.returncode == 0, done.stderr
    failures, reasons = json.loads(done.stdout.splitlines()[-1])
    assert all("Raise the limit of processes (ulimit -u" in each for each in (*failures, *reasons)), done.stdout
