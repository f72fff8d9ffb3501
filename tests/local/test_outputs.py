"""Output files of ranks: listing and download during runs and at the end of a pool."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.client.launch.launch_option_declarations import LaunchRequest
from skyward_core.client.launch.launch_plan import LaunchPlan
from skyward_core.model.errors import PoolError, UsageError
from skyward_core.pool import output_files
from skyward_core.pool.agent_link import Link
from skyward_core.tasks.python_compatibility import own_interpreter
from skyward_core.transport import file_and_result_downloads
from skyward_core.transport.background_loop import submit
from skyward_core.transport.file_and_result_downloads import PARTS, DownloadInProgress, IncomingOutput
from tests.support.child import Child
from tests.support.cli import COMMAND, call
from tests.support.faults import agent_pids
from tests.support.loopback_hosts import Hosts
from tests.support.pool_logs import settled
from tests.support.waiting import wait_until
from tests.support.written_outputs import hosts as hosts
from tests.support.written_outputs import project as project
from tests.support.written_outputs import through_ssh as through_ssh
from tests.support.written_outputs import write

LARGE = 24_000_000


@sky.function
def write_and_wait(go_on: str) -> None:
    Path("live").mkdir(exist_ok=True)
    rank = sky.instance_info().rank
    Path("live/both.txt").write_text(f"rank {rank}")
    if rank == 1:
        Path("live/one.txt").write_text("alone")
    wait_until(lambda: Path(go_on).exists())
    Path("live/last.txt").write_text(f"late {rank}")


@sky.function
def keep_writing(until: str) -> None:
    with open("growing.bin", "wb", buffering=0) as file:
        while not Path(until).exists():
            file.write(os.urandom(1000))
            threading.Event().wait(0.002)


def content(size: int, rank: int = 0, seed: int = 0) -> bytes:
    import random

    return random.Random(seed + rank).randbytes(size)


@pytest.fixture(scope="module")
def pool(hosts: Hosts, project: Path, module_home: Path) -> Iterator[sky.Compute]:
    """Pool of two nodes with one rank each, which fetches the outputs in ``live/`` automatically."""
    with sky.Compute(
        name="writers",
        provider=hosts.provider(),
        image=sky.Image(workdir=project, outputs=["live/**"]),
        options=sky.Options(console=False, grace=2.0),
    ) as compute:
        compute.run_all(write({"mine.txt": 5}))  # stays there to the end, whichever test runs
        yield compute
    assert compute.receipt is not None and compute.receipt.ok
    (first, *_) = compute.receipt.notes
    assert first.startswith("remains on the host: ") and " (127.0.0.1:" in first and not compute.receipt.lost
    # Who asks for them later is told how to have them, and that works.
    env = os.environ | {"SKYWARD_HOME": str(module_home)}
    done = call(["fetch", "writers"], env, project)
    assert done.returncode == 2
    assert "Remaining on its host: " in done.stderr and "cannot be fetched" not in done.stderr
    copies = [line.strip() for line in done.stderr.splitlines() if " && scp " in line]
    assert len(copies) == len(compute.receipt.remaining_files) == 2, done.stderr
    for copy in copies:  # these hosts speak no SFTP; where it would take them from is told by ssh
        *_, way, place, _ = shlex.split(copy)
        alias, _, folder = place.partition(":")
        there = subprocess.run(
            ["ssh", "-F", way, alias, "ls", folder],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert "mine.txt" in there.stdout, there.stderr
    done = call(["fetch", "writers", "live/**", "*.txt"], env, project)
    words = [shlex.split(line) for line in done.stderr.splitlines() if " && scp " in line]
    assert [[place.rpartition("/")[2] for place in copy[-3:-1]] for copy in words] == [["live", "*.txt"]] * 2


def paths(files: list[Any]) -> list[tuple[int, str]]:
    return [(file.node, file.path) for file in files]


def parts(folder: Path) -> list[Path]:
    return list((folder / PARTS).glob("*"))


def test_output_files_of_ranks_are_listed_by_run(pool: sky.Compute) -> None:
    pool.run_all(write({"a/__pycache__/x.pyc": 1}))
    before, over = set(pool.pool.view.runs), time.time()
    wait_until(lambda: time.time() > over + 0.05)  # clocks of file systems are no finer
    odd = ["a/new\nline", "a/\x1b[2Jescape", "a/\udcff", "a/..b", "a/ü.bin"]
    write({path: 3 for path in odd} | {"big.bin": 1000}) @ pool
    (run,) = pool.pool.view.runs.keys() - before
    expected = sorted((node, path) for node in (0, 1) for path in [*odd, "big.bin"])
    assert paths(pool.files(run=run)) == expected
    # What was sent, and is as it was, is nobody's work; what a run before wrote is that run's.
    assert paths(pool.files()) == sorted([*expected, (0, "mine.txt"), (1, "mine.txt")])
    assert paths(pool.files("*.bin", "!", run=run)) == [(n, p) for n in (0, 1) for p in ("a/ü.bin", "big.bin")]
    assert {file.size for file in pool.files("big.bin")} == {1000}
    assert all(file.age < 60 for file in pool.files())
    for pattern in ("../x", "/etc/passwd"):
        with pytest.raises(UsageError, match="leads out"):
            pool.files(pattern)
    with pytest.raises(PoolError, match="does not remember run 123abc"):
        pool.files(run="123abc")


def test_output_files_are_fetched_once_and_overwrite_nothing(pool: sky.Compute, tmp_path: Path) -> None:
    write({"f/shared": 10, "f/\udcff\n": 4}) @ pool
    target = tmp_path / "to"
    assert sorted(pool.fetch("f/**", to=target)) == sorted(
        target / rank / name for rank in ("r0", "r1") for name in ("f/shared", "f/\udcff\n")
    )
    assert (target / "r1/f/shared").read_bytes() == content(10, 1)
    assert not (target / PARTS).exists()
    haul = submit(pool.pool.context.outputs.fetch(["f/**"], target)).result()
    assert not any(each.is_new or each.error for each in haul.files)  # none came a second time

    pool.fetch("f/**", to=tmp_path)  # what was put into a folder below is left there
    assert (tmp_path / "r1/f/shared").read_bytes() == (target / "r1/f/shared").read_bytes() == content(10, 1)

    # An earlier state, as it was left, gives way; what a person changed, or put there, does not.
    (target / "r1/f/shared").write_text("my notes")
    write({"f/shared": 10}, seed=5) @ pool
    with pytest.raises(PoolError, match="the file was modified after the download"):
        pool.fetch("f/shared", to=target)
    assert (target / "r0/f/shared").read_bytes() == content(10, 0, 5)
    assert (target / "r1/f/shared").read_text() == "my notes"

    write({"f/only": 7, "f/\x1b[2J": 7}) >> pool
    settled(pool)  # while it runs, another node may yet write one, too
    another = tmp_path / "another"
    (another / "f").mkdir(parents=True)
    for name in ("f/only", "f/\x1b[2J"):
        (another / name).write_text("not yours")
    with pytest.raises(PoolError) as refused:
        pool.fetch("f/?[[]2J", to=another)
    assert "it is another file" in str(refused.value) and "\x1b" not in str(refused.value)
    with pytest.raises(PoolError, match="it is another file"):
        pool.fetch("f/only", to=another)
    (another / "f/only").write_bytes(b"1234567")  # as large
    with pytest.raises(PoolError, match="is another file"):
        pool.fetch("f/only", to=another)
    assert (another / "f/only").read_bytes() == b"1234567" and not (another / PARTS).exists()
    write({f"{PARTS}/own": 3}) >> pool
    settled(pool)
    with pytest.raises(PoolError, match="is reserved for partial downloads"):
        pool.fetch(PARTS, to=another)
    assert not (another / PARTS).exists()
    leads_out = tmp_path / "leads"
    leads_out.mkdir()
    (leads_out / "f").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    write({"f/d/deep": 7}) >> pool
    settled(pool)
    for name in ("f/only", "f/d/deep"):
        with pytest.raises(PoolError, match="leads out"):
            pool.fetch(name, to=leads_out)
    assert not any((tmp_path / "elsewhere").iterdir())


def test_future_lists_and_fetches_output_files_of_its_run(pool: sky.Compute, tmp_path: Path) -> None:
    write({"own/before": 3}) @ pool
    over = time.time()
    wait_until(lambda: time.time() > over + 0.05)
    running = write({"own/late": 5}) > pool
    assert isinstance(running, sky.RunFuture) and running.result() is None
    settled(pool)
    assert [file.path for file in running.files("own/**")] == ["own/late"]
    assert running.fetch(to=tmp_path) == [tmp_path / "own/late"]
    assert running.run in pool.pool.view.runs


@pytest.mark.proof("3 s of a processor")
def test_more_output_files_than_one_answer_holds_are_listed(pool: sky.Compute) -> None:
    @sky.function
    def scatter(many: int) -> None:
        Path("many").mkdir()
        for number in range(many):
            Path(f"many/{number}").touch()

    @sky.function
    def clear() -> None:
        for path in list(Path("many").glob("*"))[1:]:
            path.unlink(missing_ok=True)

    scatter(10_001) >> pool
    assert sorted(int(file.path[5:]) for file in pool.files("many/**")) == list(range(10_001))
    left = submit(pool.pool.context.outputs.unfetched()).result()
    assert not left.unlisted and len(left.others) >= 10_001
    clear() @ pool


def test_links_out_of_the_working_folder_are_not_followed(pool: sky.Compute, tmp_path: Path) -> None:
    @sky.function
    def link() -> None:
        (Path.home() / "secret").write_text("nobody's business")
        for name, leads_to in {"l/file": "../../../../../secret", "l/folder": "/etc", "l/loop": "."}.items():
            Path("l").mkdir(exist_ok=True)
            Path(name).symlink_to(leads_to)

    link() @ pool
    assert pool.files("l/**") == [] and pool.fetch("l/**", to=tmp_path) == []


def missing_target_or_none(pool: sky.Compute, to: Path) -> Path | None:
    """Return the download that failed because the file changed. None if the writer was too slow on a busy machine."""
    try:
        pool.fetch("growing.bin", to=to)
    except PoolError as error:
        assert "the file changed during the download" in str(error)
        return to
    return None


def is_half_downloaded(coming: Future[Any], target: Path) -> bool:
    return coming.done() or any(part.stat().st_size > 1_000_000 for part in parts(target))


@pytest.mark.proof("1 s of a processor")
def test_output_file_download_resumes_after_frozen_or_killed_agent(
    hosts: Hosts, project: Path, tmp_path: Path, through_ssh: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link is otherwise idle, so the host's server does not report the end."""
    options = sky.Options(console=False, grace=2.0)
    provider, image = hosts.provider(1), sky.Image(workdir=project)
    with sky.Compute(provider=provider, nodes=1, image=image, options=options) as pool, ThreadPoolExecutor(1) as beside:
        write({"killed.pt": LARGE}) >> pool
        settled(pool)
        (link,), (agent,) = pool.pool.links, agent_pids(pool)
        monkeypatch.setattr(output_files, "SILENCE_TIMEOUT", 0.2)
        coming = beside.submit(pool.fetch, "killed.pt", to=tmp_path)
        wait_until(lambda: parts(tmp_path))
        os.kill(agent, signal.SIGSTOP)
        try:
            wait_until(lambda: coming.done() or link.silence_seconds > 1.5)
        finally:
            os.kill(agent, signal.SIGCONT)
        assert coming.result(60) == [tmp_path / "killed.pt"]
        assert through_ssh == [0], "one that is only frozen is asked once"
        for attempt in range(5):
            begun = len(through_ssh)
            target = tmp_path / str(attempt)
            coming = beside.submit(pool.fetch, "killed.pt", to=target)
            wait_until(partial(is_half_downloaded, coming, target))
            for pid in agent_pids(pool):
                os.kill(pid, signal.SIGKILL)
            assert coming.result(60) == [target / "killed.pt"]
            assert (target / "killed.pt").read_bytes() == content(LARGE)
            if len(through_ssh) > begun + 1:
                return
        raise AssertionError(f"the agent was killed too late each time: {through_ssh}")


def test_node_that_sends_no_bytes_of_an_output_file_times_out(
    pool: sky.Compute, tmp_path: Path, through_ssh: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(link: Link, path: str, incoming: IncomingOutput) -> None:
        through_ssh.append(incoming.at)
        await asyncio.Event().wait()

    write({"stalled/a": 3, "stalled/b": 3}) >> pool
    settled(pool)
    monkeypatch.setattr(Link, "fetch_output", never)
    monkeypatch.setattr(output_files, "STALL_TIMEOUT", 0.5)
    with pytest.raises(PoolError, match=r"stalled/a, stalled/b of node .*has sent nothing"):
        pool.fetch("stalled/**", to=tmp_path)
    assert len(through_ssh) == 1, "nor are its other files waited for"


@pytest.mark.proof("1 s of a processor")
def test_output_file_fetched_by_another_client_is_waited_for(
    pool: sky.Compute, tmp_path: Path, through_ssh: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    write({"both.pt": LARGE}) >> pool
    settled(pool)
    file = max(pool.files("both.pt"), key=lambda file: file.changed_at)
    turned_away: list[int] = []

    class Noted(DownloadInProgress):
        def __init__(self, at: int) -> None:
            super().__init__(at)
            turned_away.append(at)

    monkeypatch.setattr(file_and_result_downloads, "DownloadInProgress", Noted)
    monkeypatch.setattr(output_files, "DownloadInProgress", Noted)
    theirs = IncomingOutput(tmp_path, f"{tmp_path / 'both.pt'}\0{file.node}", LARGE, file.version)
    with ThreadPoolExecutor(1) as beside:
        coming = beside.submit(pool.fetch, "both.pt", to=tmp_path)
        wait_until(lambda: len(turned_away) > 1)
        theirs.write(content(LARGE)[: LARGE // 2])
        wait_until(lambda: LARGE // 2 in turned_away)
        assert not coming.done() and not through_ssh
        theirs.release()  # it dies: this one goes on
        assert coming.result(60) == [tmp_path / "both.pt"]
    assert (tmp_path / "both.pt").read_bytes() == content(LARGE) and through_ssh == [LARGE // 2]


def test_output_file_still_being_written_is_not_fetched(pool: sky.Compute, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(lambda: keep_writing(str(stop)) >> pool)
        try:
            wait_until(lambda: pool.files("growing.bin"))
            places = (tmp_path / f"to{attempt}" for attempt in range(100))
            refused = next(filter(None, (missing_target_or_none(pool, place) for place in places)))
        finally:
            stop.touch()
        running.result()
    assert [path for path in refused.rglob("*") if path.is_file()] == []
    (file,) = pool.fetch("growing.bin", to=tmp_path / "to")
    assert file.stat().st_size == pool.files("growing.bin")[0].size


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a small disk, which takes root")
def test_full_disk_is_named_and_leaves_no_partial_output_file(
    pool: sky.Compute, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write({"disk/small": 1000, "disk/too_large": 9_000_000}) >> pool
    full = tmp_path / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(full)], check=True)
    try:
        for spare, text in (
            (output_files.SPARE_BYTES, "not enough disk space in .*: 9,000,000 bytes needed"),
            (-(1 << 40), "No space left"),
        ):
            monkeypatch.setattr(output_files, "SPARE_BYTES", spare)
            with pytest.raises(PoolError, match=f"disk/too_large of node . *{text}".replace(" *", ": .*")):
                pool.fetch("disk/**", to=full)
            assert [path.name for path in full.rglob("*") if path.is_file()] == ["small"]
    finally:
        subprocess.run(["umount", str(full)], check=True)


def test_output_files_are_fetched_during_and_after_a_run(pool: sky.Compute, project: Path, tmp_path: Path) -> None:
    go_on = tmp_path / "go"
    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(lambda: write_and_wait(str(go_on)) @ pool)
        try:
            wait_until(
                lambda: sorted(path.name for path in project.glob("outputs/*/r1/live/*")) == ["both.txt", "one.txt"]
            )
            assert not list(project.glob("outputs/*/*/live/last.txt"))
        finally:
            go_on.touch()
        running.result()
    (folder,) = {path.parents[2] for path in project.glob("outputs/*/r1/live/both.txt")}
    # What one rank alone wrote has no need of a folder of its rank's.
    wait_until(lambda: (folder / "live/one.txt").exists() and (folder / "r0/live/last.txt").exists())
    wait_until(lambda: not pool.pool.view.runs[folder.name].outputs.get(str(folder / "r1/live/one.txt"), ""))
    # In a way that minds no folder of parts that goes meanwhile.
    paths = [Path(top, name) for top, _, names in os.walk(folder) for name in names if name.endswith(".txt")]
    found = {str(path.relative_to(folder)): path.read_text() for path in paths}
    assert found == {
        "live/one.txt": "alone",
        "r0/live/both.txt": "rank 0",
        "r1/live/both.txt": "rank 1",
        "r0/live/last.txt": "late 0",
        "r1/live/last.txt": "late 1",
    }
    assert (folder / ".gitignore").read_text() == "*\n"


@pytest.mark.proof("1 s of a processor")
def test_attached_client_fetches_output_files_of_other_runs(
    pool: sky.Compute, module_home: Path, tmp_path: Path
) -> None:
    go_on, env = tmp_path / "go", os.environ | {"SKYWARD_HOME": str(module_home)}
    comes = "import sys, skyward_core as sky\nwith sky.attach('writers') as pool: sys.stdin.read()"
    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(lambda: write_and_wait(str(go_on)) @ pool)
        pipe = subprocess.PIPE
        with Child([sys.executable, "-c", comes], env=env, cwd=tmp_path, stdin=pipe) as child:
            try:
                wait_until(lambda: list(tmp_path.glob("outputs/*/r1/live/one.txt")))
            finally:
                go_on.touch()
            running.result()
            wait_until(lambda: list(tmp_path.glob("outputs/*/live/one.txt")))
            wait_until(lambda: len(list(tmp_path.glob("outputs/*/r?/live/last.txt"))) >= 2)
            assert child.stdin is not None
            child.stdin.close()
            assert child.wait(60) == 0


def test_files_and_fetch_commands_list_and_download_output_files(
    pool: sky.Compute, module_home: Path, tmp_path: Path
) -> None:
    write({"cli/\x1b[2Jx": 3, "cli/large.pt": 2 * LARGE}) >> pool
    env = os.environ | {"SKYWARD_HOME": str(module_home), "COLUMNS": "200"}

    def cli(*words: str, status: int = 0) -> str:
        done = call(words, env, tmp_path)
        assert done.returncode == status, done.stderr
        return done.stdout

    listed = cli("files", "writers", "cli/**")
    assert "48 MB" in listed and "\x1b" not in listed
    # Killed half way: nothing has the file's name, and the next one goes on.
    with Child([*COMMAND, "fetch", "writers", "cli/large.pt", "--to", "to"], env=env, cwd=tmp_path) as child:
        wait_until(lambda: any(part.stat().st_size for part in parts(tmp_path / "to")))
        child.kill()
        child.wait()
    assert [path for path in (tmp_path / "to").rglob("large.pt")] == []
    (half,) = parts(tmp_path / "to")
    assert 0 < half.stat().st_size < 2 * LARGE
    (row,) = json.loads(cli("fetch", "writers", "cli/large.pt", "--to", "to", "--json"))["files"]
    assert row["is_new"] and Path(row["target"]).read_bytes() in [content(2 * LARGE, r) for r in (0, 1)]
    assert not (tmp_path / "to" / PARTS).exists()


AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to somebody else")


class Rented:
    """Provider of hosts that end with their pool, like rented machines."""

    name, about, machine = "rented", "hosts for a while", "rented host"

    def __init__(self, inner: sky.SSH) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name in ("hosts", "default_nodes"):
            raise AttributeError(name)
        return getattr(self._inner, name)


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize(("most", "expected"), [("1 MB", None), (0, 10_000_000), (0, None), ("1 MB", 0)], ids=str)
def test_output_files_of_rented_machines_are_fetched_or_named_at_teardown(
    hosts: Hosts, project: Path, tmp_path: Path, most: int | str, expected: int | None
) -> None:
    """The pool's options or the teardown request decide."""

    @sky.function
    def checkpoint_at_the_end() -> None:
        write.fn({"end/small": 500_000, "end/large": 3_000_000})

    alone = tmp_path / "alone"  # files that were written just before a pool may count as its own
    alone.mkdir()
    options = sky.Options(console=False, grace=2.0, keep_outputs=most)
    provider: Callable[..., Any] = Rented
    with sky.Compute(
        provider=provider(hosts.provider(1)), nodes=1, image=sky.Image(workdir=alone), options=options
    ) as compute:
        checkpoint_at_the_end() >> compute
        key = compute.pool.row.key
        left = submit(compute.pool.context.outputs.unfetched()).result()
        assert {file.path: file.size for file in left.others} == {"end/small": 500_000, "end/large": 3_000_000}
        assert left.is_lost_with_machines and left.exceeds_limit and left.download_limit == (1_000_000 if most else 0)
        # Where this machine's clock was ahead when the pool was made, and is right by now.
        compute.pool.context.row = replace(compute.pool.context.row, created_at=time.time() + 86_400)
        news: list[str] = []
        compute.pool.news.subscribe(lambda event: news.append(getattr(event, "detail", "")), None)
        submit(compute.pool.down(keep_outputs=expected)).result()
    assert any("downloading output files" in each for each in news) == bool(most if expected is None else expected)
    assert compute.receipt is not None
    output_file = sorted(path.name for path in (project / "outputs" / key).rglob("*") if path.name != ".gitignore")
    if expected:
        assert output_file == ["end", "large", "small"] and not compute.receipt.lost
        return
    (lost,) = compute.receipt.lost
    if most and expected is None:
        assert output_file == ["end", "small"] and lost.startswith("1 file, 3 MB, on node 0 ")
    else:
        assert output_file == [] and lost.startswith("2 files, 3.5 MB, on node 0 ") and "end/small (500 kB)" in lost
    assert f"lost: {lost}" in str(compute.receipt)
    plan = LaunchPlan(
        request=LaunchRequest(script="x.py"),
        interpreter=own_interpreter(),
        function=None,  # type: ignore[arg-type]
        values={},
        pool=compute.spec,
        plugins=(),
    )
    assert f"the newest {most or '0 bytes'}, as no outputs are named" in plan.file_loss_warning
    assert not replace(plan, request=replace(plan.request, keep=True)).file_loss_warning


def take_as_a_file(folder: Path) -> None:
    folder.write_text("a file in a folder's place")


def take_as_a_stranger(folder: Path) -> None:
    folder.mkdir(mode=0o777)
    folder.parent.chmod(0o1777)
    os.chown(folder, 65534, 65534)


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("take", [take_as_a_file, pytest.param(take_as_a_stranger, marks=AS_ROOT)])
def test_output_files_that_cannot_be_saved_are_named(
    hosts: Hosts, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, take: Callable[[Path], None]
) -> None:
    work, here = tmp_path / "work", tmp_path / "here"
    for folder in (work, here):
        folder.mkdir()
    take(here / "outputs")
    monkeypatch.chdir(here)
    provider: Callable[..., Any] = Rented
    with sky.Compute(
        provider=provider(hosts.provider(1)),
        nodes=1,
        image=sky.Image(workdir=work, outputs=["*.pt"]),
        options=sky.Options(console=False, grace=2.0),
    ) as compute:
        write({"a.pt": 5, "b.txt": 7}) >> compute
    assert compute.receipt is not None
    (lost,) = compute.receipt.lost
    assert lost.startswith("2 files, 12 bytes, on node 0 ") and "a.pt (5 bytes)" in lost
    assert any("could not be downloaded" in note for note in compute.receipt.notes)


@sky.function
def saves_when_it_is_stopped(begun: str) -> None:

    Path(begun).touch()
    try:
        signal.pause()
    finally:
        Path("late").mkdir()
        Path("late/last.pt").write_text("what took hours")


@pytest.mark.proof("1 s of a processor")
def test_output_files_of_stopped_ranks_go_to_the_client_that_ends_them(
    hosts: Hosts, project: Path, module_home: Path, tmp_path: Path
) -> None:
    begun, elsewhere = tmp_path / "begun", tmp_path / "elsewhere"
    elsewhere.mkdir()
    env = os.environ | {"SKYWARD_HOME": str(module_home)}
    ends_it = "import skyward_core as sky; print(*sky.attach('torn').down().notes)"
    with (
        sky.Compute(
            name="torn",
            provider=hosts.provider(1),
            nodes=1,
            image=sky.Image(workdir=project, outputs=["late/**"]),
            options=sky.Options(console=False, grace=20.0),
        ) as compute,
        ThreadPoolExecutor(1) as beside,
    ):
        running = beside.submit(lambda: saves_when_it_is_stopped(str(begun)) >> compute)
        wait_until(begun.exists)
        done = subprocess.run(
            [sys.executable, "-c", ends_it], env=env, cwd=elsewhere, capture_output=True, text=True, timeout=90
        )
        assert done.returncode == 0, done.stderr
        with pytest.raises(sky.PoolGone):
            running.result()
    (fetched,) = elsewhere.glob("outputs/*/late/last.pt")
    assert fetched.read_text() == "what took hours"
    assert "late/last.pt" not in done.stdout, "what has come is not named as left there"


@pytest.mark.proof("0.8 s of a processor")
def test_fetch_ends_when_another_client_ends_the_pool(
    hosts: Hosts, project: Path, tmp_path: Path, through_ssh: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def half(link: Link, path: str, incoming: IncomingOutput) -> None:
        incoming.write(b"" if incoming.at else b"half")
        through_ssh.append(incoming.at)
        while link.up:
            await asyncio.sleep(0.01)
        raise ConnectionError("the link went down")

    with (
        sky.Compute(
            name="ended",
            provider=hosts.provider(1),
            nodes=1,
            image=sky.Image(workdir=project),
            options=sky.Options(console=False, grace=1.0),
        ) as compute,
        sky.attach("ended") as other,
        ThreadPoolExecutor(1) as beside,
    ):
        write({f"ended/{name}": 9 for name in "abcdefg"}) >> compute
        settled(compute)
        monkeypatch.setattr(Link, "fetch_output", half)
        coming = beside.submit(other.fetch, "ended/**", to=tmp_path)
        wait_until(lambda: through_ssh)
        assert compute.pool is not None and submit(compute.pool.down()).result().ok
        with pytest.raises(PoolError, match=r"pool ended: ended/a, .*ended/e and 2 more of node 0: .* was ended at"):
            coming.result(50)
    assert len(through_ssh) == 1 and not (tmp_path / PARTS).exists()


def test_local_pool_has_no_output_files_to_fetch(module_home: Path, tmp_path: Path) -> None:
    def run(words: tuple[str, str], status: int) -> str:
        env = os.environ | {"SKYWARD_HOME": str(module_home)}
        done = call(words, env)
        assert done.returncode == status, done.stderr
        return done.stderr

    with sky.Compute(provider=sky.Local(), options=sky.Options(console=False, grace=1.0)) as compute:
        assert compute.files() == [] and compute.fetch("**", to=tmp_path) == []
        name = compute.pool.name
        output = run(("files", name), 0)
        assert "runs on this machine: its ranks write directly to " in output and "no such" not in output
        output = run(("fetch", name), 0)
        assert "nothing to fetch: pool" in output and "its ranks write directly to " in output
    assert compute.receipt is not None and not compute.receipt.notes
    output = run(("fetch", name), 2)
    assert "ran on this machine: its ranks write directly to " in output


@pytest.mark.proof("2 s of a processor")
def test_next_client_continues_the_partial_file_of_the_same_version_only(tmp_path: Path) -> None:
    for version, begins_at in (("first", 0), ("first", 2), ("second", 0)):
        incoming = IncomingOutput(tmp_path, "model.pt", 4, version)
        assert incoming.at == begins_at
        incoming.write(b"ab"[: 2 - begins_at])
        incoming.release()  # its client was killed
