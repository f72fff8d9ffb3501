"""Checkpoints of runs on hosts without a shared disk: copies on the client, in a store and on nodes."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.model.errors import UsageError
from skyward_core.pool import checkpoint_copies, output_files
from skyward_core.pool.blob_distribution import BlobDistributor
from skyward_core.pool.checkpoint_copies import CheckpointCopies
from skyward_core.pool.checkpoint_store import CheckpointStore
from skyward_core.pool.output_files import FileListing
from skyward_core.views.events import Event, PoolState
from tests.support.child import Child
from tests.support.cli import call
from tests.support.faults import release_pipe
from tests.support.loopback_hosts import Hosts
from tests.support.pool_logs import last_run
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    made = Hosts(tmp_path_factory.mktemp("hosts"))
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(output_files, "QUIET_TIME", 0.2)
    monkeypatch.setattr(output_files, "FETCH_INTERVALS", (0.1, 0.1))
    return folder


@sky.function
def save_steps(last: int, seen: str) -> list[str]:
    """Save a checkpoint per step on the head, and continue when it is in the store. Return the files found first."""
    folder = Path(sky.checkpoint_dir())
    found = sorted(f"{each.parent.name}/{each.read_text()}" for each in folder.rglob("w.bin"))
    steps = range(1 + len(found), last + 1) if sky.instance_info().is_head else ()
    for step in steps:
        target = folder / f"step-{step}"
        target.mkdir(exist_ok=True)
        (target / "w.bin").write_text(str(step))
        wait_until(lambda step=step: any(Path(seen).rglob(f"step-{step}/w.bin")))  # type: ignore[misc]
    return found


@pytest.mark.proof("5 s of a processor", after=1)
@pytest.mark.parametrize("place", ["local", "hosts"])
def test_new_client_resumes_from_the_store_with_the_newest_checkpoint(
    place: str, hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"

    def compute(**more: object) -> sky.Compute:
        options = sky.Options(console=False, checkpoint_store=f"file://{store}", **more)  # type: ignore[arg-type]
        return sky.Compute(provider=hosts.provider() if place == "hosts" else sky.Local(), nodes=2, options=options)

    with compute() as pool:
        assert (save_steps(4, str(store)) @ pool)[0] == []
        (run,) = pool.pool.view.runs.values()
        wait_until(lambda: run.checkpoint_at is not None, what=lambda: run)
    kept = {"step-3/3", "step-4/4"}
    assert {f"{each.parent.name}/{each.read_text()}" for each in store.rglob("w.bin")} == kept
    rows = json.loads(call(["checkpoints", run.id, "--json"], os.environ).stdout)["checkpoints"]
    named = {Path(row["name"]).name: row["places"] for row in rows if row["complete"]}
    assert named["step-4"] == ["client", "store"]
    if place == "hosts":
        assert {each.parent.name for each in Path("outputs").rglob("w.bin")} == {"step-3", "step-4"}
        assert set(named) == {"step-3", "step-4"}
        assert not list(hosts.known.parent.rglob("checkpoints")), "hosts keep nothing that the client has"
    for name in ("SKYWARD_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "new-machine"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with compute(resume=run.id) as pool:
        assert "step-4/4" in (results := save_steps(2, str(store)) @ pool)[1] and results[0] == ["step-4/4"]
        (again,) = pool.pool.view.runs
    assert not list(Path("outputs").rglob("store-*"))
    newest = sky.Options(console=False, resume=run.id)
    with sky.Compute(provider=hosts.provider() if place == "hosts" else sky.Local(), nodes=2, options=newest) as pool:
        results = save_steps(1, "") @ pool
    assert results == [["step-2/2"] if place == "hosts" else ["step-2/2", "step-4/4"]] * 2
    with pytest.raises(UsageError, match=f"Resume run {run.id}"), compute(resume=again):
        pass


@sky.function
def list_folders() -> int:
    return len(list(Path("checkpoints").iterdir()))


def test_local_pool_leaves_no_empty_folder_for_checkpoints(project: Path) -> None:
    options = sky.Options(console=False, on_loss="restart")
    with sky.Compute(provider=sky.Local(), nodes=2, options=options) as pool:
        assert list_folders() @ pool == [1, 1]
    assert list(project.iterdir()) == []


@sky.function
def save_once(end: str) -> None:
    Path(sky.checkpoint_dir(), "step-1.json").write_text("{}")
    wait_until(Path(end).exists)


def test_teardown_names_the_checkpoint_whose_upload_hangs(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of one scan, before, does not end the scans of the run."""
    released, scans, update = threading.Event(), list[str](), CheckpointCopies.update

    async def fail_once(copies: CheckpointCopies, run: str, found: FileListing) -> None:
        scans.append(run)
        if len(scans) == 1:
            raise OSError("a file was deleted during the scan")
        await update(copies, run, found)

    monkeypatch.setattr(CheckpointCopies, "update", fail_once)
    monkeypatch.setattr(CheckpointStore, "save", lambda *_: released.wait(60))
    monkeypatch.setattr(output_files, "UPLOAD_TIMEOUT", 0.5)
    options = sky.Options(console=False, checkpoint_store=f"file://{tmp_path / 'store'}")
    try:
        with sky.Compute(provider=sky.Local(), options=options) as compute:
            done = save_once(str(tmp_path / "end")).on(compute)
            wait_until(lambda: compute.pool.context.checkpoints.upload[0], what=lambda: scans)
            (tmp_path / "end").touch()
            done.result()
        assert compute.receipt is not None
        (note,) = [each for each in compute.receipt.notes if "upload" in each]
        name = f"checkpoints/{scans[0]}/step-1.json"
        assert note.startswith(f"checkpoint {name} of run {scans[0]} was not uploaded within")
    finally:
        released.set()


@sky.function
def die_during_a_save(seen: str) -> list[str]:
    """Save on the head, wait for the copy, and die within the next save to the same file and to a new folder."""
    folder = Path(sky.checkpoint_dir())
    if not sky.attempt().is_restart:
        if sky.instance_info().is_head:
            for step in (1, 2):
                for target in (folder / "latest.json", folder / f"checkpoint-{step}" / "training_args.bin"):
                    target.parent.mkdir(exist_ok=True)
                    target.write_text(json.dumps({"step": step})[: 12 if step == 1 else 6])
                if step == 1:
                    (folder / "checkpoint-1" / "trainer_state.json").write_text("{}")
                    for name in ("trainer_state.json", "latest.json"):
                        wait_until(lambda name=name: any(Path(seen).rglob(name)))  # type: ignore[misc]
            wait_until(Path(seen).with_name("seen").exists)
            os.kill(os.getpid(), signal.SIGKILL)
        wait_until(lambda: False)
    return sorted(f"{each.parent.name}/{each.read_text()}" for each in folder.rglob("*") if each.is_file())


def test_rank_that_dies_during_a_save_continues_from_the_save_before(hosts: Hosts, project: Path) -> None:
    options = sky.Options(console=False, grace=0.5, on_loss="restart")
    with sky.Compute(provider=hosts.provider(), nodes=2, options=options) as pool:
        running = die_during_a_save(str(project / "outputs")).on_all(pool)
        torn = pool.pool.context.outputs.torn_versions
        wait_until(lambda: any(path.endswith("latest.json") for _, path in list(torn)), what=lambda: torn)
        wait_until(lambda: any(Path("outputs").rglob("checkpoint-2/training_args.bin")))
        (project / "seen").touch()
        head, other = running.result()
        (run,) = pool.pool.view.runs
    whole = ['checkpoint-1/{"step": 1}', "checkpoint-1/{}", f'{run}/{{"step": 1}}']
    assert other == sorted(whole)
    assert head == sorted([*whole, 'checkpoint-2/{"step'])


@sky.function
def save_elsewhere_and_die(seen: str) -> list[str]:
    """Save three steps outside of the run's folder, each when the client has the one before, and die."""

    def is_on_client(step: int) -> bool:
        return any(each.exists() for each in Path(seen).glob(f"*/*/out/step-{step}/w.bin"))

    folder, is_head = Path("out"), sky.instance_info().is_head
    if not sky.attempt().is_restart:
        for step in (1, 2, 3) if is_head else ():
            (target := folder / f"step-{step}" / "w.bin").parent.mkdir(parents=True)
            target.write_bytes(bytes([step]) * 1000)
            wait_until(lambda step=step: is_on_client(step))  # type: ignore[misc]
        wait_until(lambda: is_head and not is_on_client(1))
        os.kill(os.getpid(), signal.SIGKILL)
    return sorted(each.parent.name for each in folder.rglob("w.bin"))


@pytest.mark.proof("2 s of a processor")
def test_files_of_a_pattern_are_checkpoints_within_their_size(hosts: Hosts, project: Path) -> None:
    """The client deletes the oldest ones beyond ``checkpoint_limit``. The other node continues from the newest."""
    limits = {"keep_checkpoints": 9, "checkpoint_limit": 2500}
    options = sky.Options(console=False, grace=0.5, on_loss="restart", **limits)  # type: ignore[arg-type]
    image = sky.Image(checkpoints=["out/**"])
    with sky.Compute(provider=hosts.provider(), nodes=2, image=image, options=options) as pool:
        head, other = save_elsewhere_and_die(str(project / "outputs")) @ pool
        (run,) = pool.pool.view.runs.values()
        assert run.attempt == 2
    assert head == ["step-1", "step-2", "step-3"], "a node keeps the files of its own ranks"
    assert "step-3" in other and "step-1" not in other
    assert {each.parent.name for each in Path("outputs").rglob("w.bin")} == {"step-2", "step-3"}


PATTERN_SCRIPT = """
import os, signal, time
from pathlib import Path
import skyward_core as sky

saved, rank = Path("out/step-1/w.bin"), sky.instance_info().rank
if not sky.attempt().is_restart:
    if rank == 0:
        saved.parent.mkdir(parents=True)
        saved.write_text("state")
        while not list(Path({seen!r}).glob("*/*/out/step-1/w.bin")):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        time.sleep(0.05)
print("found", saved.read_text(), flush=True)
"""


@pytest.mark.proof("3 s of a processor")
def test_command_line_names_the_checkpoints_of_an_unchanged_script(hosts: Hosts, project: Path) -> None:
    (project / "train.py").write_text(PATTERN_SCRIPT.format(seen=str(project / "outputs")))
    provider = hosts.provider()
    settings = {"keys": hosts.slots[0].client_key, "known_hosts": hosts.known, "config": "false"}
    words = [
        "run",
        "train.py",
        "--hosts",
        ",".join(map(str, provider.hosts)),
        "--restarts",
        "1",
        "--checkpoints",
        "out/**",
    ]
    words += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    done = call(words, os.environ)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [f"r00{rank}| found state" in lines for rank in range(2)] == [True, True], done.stdout


@sky.function
def save_when_the_other_node_has_a_copy(last: int, seen: str) -> list[str]:
    """Save steps on the head, each when the other node has the step before. Return the steps that a node has."""
    is_head, folder = sky.instance_info().is_head, Path(sky.checkpoint_dir())
    for step in range(1, last + 1):
        target = folder / f"step-{step}" / "w.bin"
        if is_head:
            target.parent.mkdir()
            target.write_bytes(bytes([step]) * 3_000_000)
            wait_until(Path(seen, str(step)).exists)
        wait_until(target.exists)
        Path(seen, str(step)).touch()
    return sorted(each.parent.name for each in folder.rglob("w.bin") if len(each.read_bytes()) == 3_000_000)


def test_second_machine_has_copies_during_the_run_that_did_not_pass_the_client(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BlobDistributor, "send", None)
    with sky.Compute(provider=hosts.provider(), options=sky.Options(console=False, on_loss="restart")) as pool:
        head, other = save_when_the_other_node_has_a_copy(4, str(tmp_path)) @ pool
        run = pool.pool.view.runs[last_run(pool)]
    assert run.checkpoint_at is not None and run.elsewhere_at is None, "all hosts are on this machine"
    assert head == ["step-1", "step-2", "step-3", "step-4"]
    assert other == ["step-3", "step-4"], "outdated copies are deleted"


@sky.function
def fail_with_hung_disk_on_one_node(hung: str) -> int:
    """Rank 0 saves and dies. A pipe in place of a file of node 1's agent stands for a disk that does not answer."""
    attempt, rank = sky.attempt().number, sky.instance_info().rank
    pipe = f"{Path.cwd()}.restored.json.part"
    if attempt == 1 and rank == 1:
        os.mkfifo(pipe)
        Path(hung).touch()
    if attempt == 1 and rank == 0:
        Path(sky.checkpoint_dir(), "a.pt").write_text("step 1")
        wait_until(Path(hung).exists)
        os.kill(os.getpid(), signal.SIGKILL)
    while attempt == 1:
        time.sleep(0.02)
    if rank == 1:
        release_pipe(Path(pipe))
    return attempt


def test_hung_disk_of_a_node_does_not_hold_the_next_attempt(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_copies, "PATIENCE", 1.0)
    options = sky.Options(console=False, grace=0.5, on_loss="restart")
    warnings: list[str] = []
    with sky.Compute(provider=hosts.provider(), nodes=2, options=options) as pool:

        def note(event: Event) -> None:
            if isinstance(event, PoolState):
                warnings.append(event.detail)

        pool.pool.news.subscribe(note, None)
        assert fail_with_hung_disk_on_one_node(str(tmp_path / "hung")) @ pool == [2, 2]
    assert any("node 1 has not stored" in each and "Check its disk" in each for each in warnings), warnings


CLIENT = """
import json, sys
import skyward_core as sky
from skyward_core.providers import provider_from_json
from tests.local.test_checkpoints import fail_with_hung_disk_on_one_node
# Without a gang, no agent starts the next attempt, which would release the pipe.
options = sky.Options(console=False, grace=0.5, on_loss="restart", cluster=False)
pool = sky.Compute(name="shared", provider=provider_from_json(json.loads(sys.argv[1])), nodes=2, options=options)
fail_with_hung_disk_on_one_node(sys.argv[2]) @ pool.__enter__()
"""


@sky.function
def list_checkpoints() -> list[str]:
    return sorted(each.name + each.read_text() for each in Path("checkpoints").rglob("*") if each.is_file())


@pytest.mark.proof("3 s of a processor")
def test_client_killed_during_a_copy_leaves_whole_files(hosts: Hosts, project: Path, tmp_path: Path) -> None:
    folder = hosts.known.parent
    command = [sys.executable, "-c", CLIENT, json.dumps(hosts.provider().to_json()), str(tmp_path / "hung")]
    with Child(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=project, text=True) as client:
        wait_until(lambda: any(folder.rglob("a.pt.skyward-part")))
        client.kill()
        client.wait()
    (pipe,) = folder.rglob("*.restored.json.part")
    with sky.attach("shared") as pool:
        assert list_checkpoints() @ pool == [["a.ptstep 1"], ["a.pt.skyward-partstep 1"]]
        release_pipe(pipe)
        wait_until(lambda: list_checkpoints() @ pool == [["a.ptstep 1"]] * 2)
        pool.down()
