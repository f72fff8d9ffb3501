"""The working folder on hosts over SSH: sent files and fetched outputs."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.model.errors import PoolError, SpecError
from skyward_core.pool.agent_link import Link
from skyward_core.pool.direct_file_transfers import DirectConnections
from skyward_core.store.ledger import Ledger
from skyward_core.store.pool_folder import read_events
from skyward_core.transport.file_and_result_downloads import PARTS, IncomingOutput
from skyward_core.views.events import PoolState
from tests.support.pool_logs import last_run, log_of
from tests.support.sessions import new_session

from . import Lab
from .pools import DEADLINE, Client, agents, nothing_runs, pool, ssh, until


@pytest.fixture
def project(home: Path) -> Path:
    """Working folder outside of the current folder."""
    folder = home / "project"
    folder.mkdir()
    return folder


@pytest.mark.proof("1 s of a processor")
def test_whole_script_runs_as_the_copy_on_the_node(pair: Lab, project: Path) -> None:
    script = project / "whole.py"
    (project / "beside_the_script.py").write_text("WORD = 'found'\n")
    (project / "data.txt").touch()
    text = "import beside_the_script, os, socket, sys\nfrom pathlib import Path\n"
    text += "assert os.path.samefile(Path(__file__).parent, sys.path[0]) and Path('data.txt').exists()\n"
    script.write_text(f"{text}print(__file__, beside_the_script.WORD, sys.argv[1])\n")
    with pool(pair, nodes=2, image=sky.Image(workdir=str(project))) as compute:
        sky.script(script, ["a"]) @ compute
        settled = [log_of(compute, last_run(compute), rank).decode().split() for rank in (0, 1)]
        for file, *values in settled:
            assert (Path(file).name, values) == ("whole.py", ["found", "a"]) and file != str(script)
        script.write_text("raise KeyError(1)  # is newer than what the nodes have\n")
        with pytest.raises(sky.RunError, match="KeyError"):
            sky.script(script) @ compute
        (project.parent / "elsewhere.py").write_text("pass\n")
        with pytest.raises(sky.RunError, match="is not in the working folder that was sent to this node"):
            sky.script(project.parent / "elsewhere.py") @ compute


def test_working_folder_that_cannot_be_sent_is_refused_by_name(pair: Lab, home: Path) -> None:
    for folder, why in (
        (Path("/"), "contains your home.*Image"),
        (home / "none", "is not a folder. Name an existing folder"),
    ):
        refused = pytest.raises((PoolError, SpecError), match=f"{folder} {why}")
        with refused, pool(pair, nodes=1, image=sky.Image(workdir=str(folder))):
            pass


@sky.function
def seen_below(word: str) -> list[str]:
    """Write a file, and return the files below the working folder that hold a word."""
    Path("result.txt").write_text("mine")
    files = [Path(at, name) for at, _, names in os.walk(".", followlinks=True) for name in names]
    return sorted(str(each) for each in files if each.is_file() and word.encode() in each.read_bytes())


def test_state_folder_is_never_sent_to_a_host(
    pair: Lab, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(project / "home"))
    for each in (project / "home", project / "below" / "of-earlier", tmp_path / "elsewhere"):
        (each / "pools" / "p").mkdir(parents=True, mode=0o700)
        (each / "pools" / "p" / "events.jsonl").write_text("a word of ours")
        (each / "ledger.db").touch(mode=0o600)
    (project / "home" / "ledger.db").unlink()  # the pool's own
    (project / "link").symlink_to(tmp_path / "elsewhere" / "pools")
    (project / "data.txt").write_text("a word of ours")
    image = sky.Image(workdir=str(project), includes=["home", "below", "**/*", "link/p/*"])
    with pool(pair, nodes=1, image=image) as compute:
        assert seen_below("a word of ours") >> compute == ["data.txt"]
        assert seen_below("SQLite format") >> compute == []
        held = [str(each) for each in pair.hosts[0].home.rglob("ledger.db*")]
    assert held == []
    assert compute.receipt is not None and compute.receipt.ok


# A module that is edited here while a pool is up elsewhere is used there by the next run.


SECOND = time.time_ns() // 10**9 * 10**9
EDITS = itertools.count()


@sky.function
def loads(name: str) -> str:
    import importlib

    return str(importlib.import_module(name).WORD)


@sky.function
def trained(text: str) -> tuple[str, str]:
    """Return the content of the uploaded files, and then overwrite them."""
    files = Path("model.pt"), Path("notes.txt")
    found = files[0].read_text(), files[1].read_text()
    for file in files:
        file.write_text(text)
    return found


def write(name: str, word: str) -> None:
    """Write files within one second, which is the resolution of the times in Python's bytecode."""
    path = Path(f"{name}.py")
    path.write_text(f"WORD = {word!r}\n\ndef word():\n    return WORD\n")
    os.utime(path, ns=(0, SECOND + next(EDITS)))


def test_files_written_by_ranks_are_not_overwritten_after_an_edit(lab: Lab) -> None:
    write("edited_helper", "one")
    for name in ("model.pt", "notes.txt"):
        Path(name).write_text("sent")
    with pool(lab, ssh(lab, lab.hosts[:1]), name="kept") as compute:
        assert loads("edited_helper") >> compute == "one"
        assert trained("by a rank") >> compute == ("sent", "sent")
        write("edited_helper", "two")
        Path("notes.txt").write_text("edited, too")
        assert loads("edited_helper") >> compute == "two"
        assert trained("later") >> compute == ("by a rank", "edited, too")
        assert {file.path for file in compute.files("*t*")} == {"model.pt", "notes.txt", "notes.txt.of-ranks"}
        folder = compute.pool.context.archive.folder
    events = read_events(folder)
    details = [event.detail for event in events if isinstance(event, PoolState) and "notes.txt" in event.detail]
    assert len(details) == 1 and details[0].startswith("node 0: notes.txt was changed by you and by ranks")


SIZE = 30_000_000
RATE = 200  # Mbit/s, so that there is a half way


@sky.function
def write_model(seed: int) -> None:
    Path("model.pt").write_bytes(random.Random(seed).randbytes(SIZE))


def begun_in(folder: Path) -> bool:
    return any(part.stat().st_size > SIZE // 10 for part in (folder / PARTS).glob("*"))


def test_checkpoint_download_resumes_after_pulled_cables(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: list[tuple[str, int]] = []

    def noted(way: Any, method: str, name: str) -> None:
        take = getattr(way, method)

        async def noting(self: object, *given: object) -> object:
            ways.append((name, next(each for each in given if isinstance(each, IncomingOutput)).at))
            return await take(self, *given)

        monkeypatch.setattr(way, method, noting)

    noted(DirectConnections, "download_output", "direct")
    noted(Link, "fetch_output", "ssh")

    def cable() -> None:
        lab.client.unplug()
        until(lambda: len(ways) > 1, "the line for files to be given up")
        lab.client.plug()

    def agent() -> None:
        for pid in agents(lab.hosts[0]):
            with suppress(ProcessLookupError):  # a channel that just ended
                os.kill(pid, signal.SIGKILL)

    project = tmp_path / "project"
    project.mkdir()
    image = sky.Image(workdir=project)
    with pool(lab, ssh(lab, lab.hosts[:1]), image=image) as compute, ThreadPoolExecutor(1) as beside:
        cuts: list[Callable[[], None]] = [cable, agent]
        for seed, cut in enumerate(cuts):
            write_model(seed) >> compute
            target, begun = tmp_path / str(seed), len(ways)
            lab.client.limit_rate(RATE)
            try:
                coming = beside.submit(compute.fetch, "model.pt", to=target)
                until(lambda: coming.done() or begun_in(target), "a part")  # noqa: B023
                assert not coming.done(), coming.exception()
                cut()
            finally:
                lab.client.limit_rate(None)
            assert coming.result(DEADLINE) == [target / "model.pt"]
            assert (target / "model.pt").read_bytes() == random.Random(seed).randbytes(SIZE)
            assert len(ways) - begun > 1 and ways[begun][1] == 0 and ways[-1][1] > SIZE // 20, ways[begun:]
    assert compute.receipt is not None and compute.receipt.ok and not compute.receipt.notes


# A pool on real hosts ends by its lease before anybody has fetched what a run gave: the hosts keep that.


LARGE_RESULT = 300_000  # bytes of a result: more than travels in a frame


def test_unfetched_results_stay_on_hosts_until_they_are_fetched(pair: Lab) -> None:
    with Client(
        pair,
        f"""
        from pathlib import Path

        @sky.function
        def work():
            rank = sky.instance_info().rank
            print("begun by rank", rank, flush=True)
            while not (Path.home() / "left").exists():
                time.sleep(0.01)
            print("done by rank", rank, flush=True)
            return rank, bytes({LARGE_RESULT})

        options = sky.Options(**quiet, idle_timeout=1.0)
        with sky.Compute(provider=ssh, name="left", options=options) as compute:
            threading.Thread(target=lambda: work() @ compute, daemon=True).start()
            pool = compute.pool  # which writes the run to the ledger shortly after its dispatch
            while len(pool.archive.cursors) < len(pool.links) or not pool.ledger.runs(pool.row.token):
                time.sleep(0.01)
            print("begun", flush=True)
            time.sleep(600)
        """,
    ) as client:
        assert client.read_line() == "begun"
    for host in pair.hosts:
        (host.home / "left").touch()  # the client has ended, and fetches nothing
    row = Ledger().find_pool("left")
    assert row is not None
    (run,) = (found.run for found in Ledger().runs(row.token))
    nodes = len(pair.hosts)
    with new_session() as session:

        def ended() -> bool:
            (view,) = session.refresh().result(60)
            return not view.is_live

        until(ended, "the pool's end by its lease")
        retained = session.retained_results()
        assert [each.machine.node for each in retained] == list(range(nodes))
        assert all(each.runs[run] >= LARGE_RESULT and each.size >= LARGE_RESULT for each in retained)
        nothing_runs(pair)
        assert sky.results(run) == [(rank, bytes(LARGE_RESULT)) for rank in range(nodes)]
        assert session.retained_results() == []
    nothing_runs(pair)
    found = Ledger().pool(row.token)
    assert found.receipt is not None and found.receipt["kept"] == []
