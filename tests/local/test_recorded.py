"""Recording of a pool, export to one file, and replay."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.client import replayable_recording_export
from skyward_core.client.replay_session import Playback, open_recording
from skyward_core.client.replayable_recording_export import export_recording
from skyward_core.model.errors import UsageError
from skyward_core.pool import machine_metrics_recorder as machine_metrics
from skyward_core.store.ledger import Ledger
from skyward_core.store.past_pool_views import load_finished_pool
from skyward_core.store.recording_file import RecordingReader
from skyward_core.store.state_folder import pool_path
from tests.support.cli import Cli
from tests.support.images import picture
from tests.support.waiting import wait_until

QUIET = sky.Options(console=False)
SECRET = "hf-0123456789-abcdefghij"
"""Known to the client that packs, not to the ranks that print it."""


@sky.function
def train(gate: str) -> int:
    rank = sky.instance_info().rank
    print("password=open-sesame-7")
    print("a token", end=" ", flush=True)
    print(SECRET, flush=True)
    for step in range(5):
        sky.log(loss=1.0 / (1 + step))
    sky.log_image("canvas", picture(), step=4)
    while not Path(gate).exists():
        time.sleep(0.02)
    if rank == 1:
        raise ValueError("out of sand")
    return rank


@pytest.fixture(scope="module")
def key(module_home: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Key of an ended pool whose machines were sampled only for the recording."""
    gate = tmp_path_factory.mktemp("gate") / "open"
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as beside:
        patch.setattr(machine_metrics, "LONG_RUN", 0.01)
        patch.chdir(gate.parent)  # Ranks write the files of their images there.
        with sky.Compute(name="seen", nodes=1, worker=sky.Worker(ranks_per_node=2), options=QUIET) as compute:
            key = compute.pool.row.key
            future = beside.submit(lambda: train(str(gate)) @ compute)
            view = compute.pool.view
            wait_until(lambda: view.machines is not None and view.machines.machine(0).host.seen > 2)
            gate.touch()
            with pytest.raises(sky.RunError):
                future.result()
    return key


@pytest.fixture
def ledger(module_home: Path) -> Iterator[Ledger]:
    ledger = Ledger()
    yield ledger
    ledger.close()


def played(path: Path) -> Playback:
    """Playback at the end of its recording."""
    playback = Playback(open_recording(path))
    playback.seek(1e12)
    playback.advance()
    return playback


def test_recording_of_a_pool_replays_its_logs_metrics_and_outcomes(key: str, ledger: Ledger, tmp_path: Path) -> None:
    row = ledger.find_pool(key)
    assert row is not None
    (run,) = ledger.runs(row.token)
    packed = export_recording(ledger, row, "", tmp_path / "a.skyrec")
    assert packed.size == (tmp_path / "a.skyrec").stat().st_size < 100_000 and not packed.left_out
    playback = played(packed.path)
    view, recalled = playback.view, load_finished_pool(ledger, row)
    assert playback.skipped_count == 0
    assert view.state == "gone" and view.world_size == 2
    assert view.runs[run.run].counts == recalled.runs[run.run].counts
    assert view.runs[run.run].root_cause == recalled.runs[run.run].root_cause
    assert view.metrics.history(run.run, 1, "loss") == recalled.metrics.history(run.run, 1, "loss")
    (image,) = view.metrics.images(run.run)
    assert (image.rank, image.step, image.preview) == (0, 4, picture())
    assert [image] == recalled.metrics.images(run.run)
    ring = view.logs.for_run(run.run).rank(0)
    assert ring.lines(0, ring.end) == ["password=***", f"a token {SECRET}"]
    assert view.machines is not None and view.machines.nodes[0].host.seen > 1
    assert view.machines.nodes[0].host.trace("cpu").values
    before = playback.state()
    assert before.failure is not None and before.start == row.created_at
    playback.seek_failure()
    playback.advance()
    assert playback.state().now == before.failure and not playback.state().playing
    assert playback.view.runs[run.run].tasks[1].state == "raised"


def test_secrets_of_the_exporting_client_are_redacted_in_a_recording(
    key: str, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    row = ledger.find_pool(key)
    assert row is not None
    packed = export_recording(ledger, row, "", tmp_path / "a.skyrec")
    text = json.dumps(list(RecordingReader.read(packed.path).entries()))
    assert SECRET not in text and "open-sesame" not in text and "a token ***" in text


def test_single_run_can_be_exported_and_no_file_is_overwritten(key: str, ledger: Ledger, tmp_path: Path) -> None:
    row = ledger.find_pool(key)
    assert row is not None
    (run,) = ledger.runs(row.token)
    assert list(played(export_recording(ledger, row, run.run, tmp_path / "a").path).view.runs) == [run.run]
    assert played(export_recording(ledger, row, "other", tmp_path / "b").path).view.runs == {}
    with pytest.raises(FileExistsError):
        export_recording(ledger, row, "", tmp_path / "a")


def test_long_logs_in_a_recording_keep_beginning_and_end(
    key: str, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = ledger.find_pool(key)
    assert row is not None
    monkeypatch.setattr(replayable_recording_export, "MAX_LOG_BYTES", 0)
    # The budget is shared by the sizes of stdout and stderr, and a rank that is stopped may print to stderr.
    logs = pool_path(key) / "logs"
    size = sum(file.stat().st_size for pattern in ("r000.out", "r000.err") for file in logs.glob(pattern))
    monkeypatch.setattr(replayable_recording_export, "MIN_WORKER_BYTES", size - 8)
    packed = export_recording(ledger, row, "", tmp_path / "a")
    assert packed.left_out > 0
    ring = played(packed.path).view.logs.rank(0)
    shown = ring.lines(0, ring.end)
    (cut,) = [place for place, line in enumerate(shown) if "bytes of this log are not in the recording" in line]
    assert any(line.startswith("password=") for line in shown[:cut])
    assert any(line.endswith(SECRET[-8:]) for line in shown[cut:])


def test_pruned_pool_cannot_be_exported_as_a_recording(
    key: str, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = ledger.find_pool(key)
    assert row is not None
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "another"))
    with pytest.raises(UsageError, match="has no stored data"):
        export_recording(ledger, row, "", tmp_path / "a")


@pytest.mark.proof("1 s of a processor")
def test_record_command_exports_a_running_pool_or_one_run(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    cli("run", "endings.py:fine", "--nodes", 2, "--pool", "mine", "--keep")
    data = cli.json("record", "mine")
    path = cli.folder / "mine.skyrec"
    assert data["path"] == "mine.skyrec" and data["bytes"] == path.stat().st_size and data["run"] == ""
    view = played(path).view
    (run,) = view.runs
    assert view.state == "up" and view.runs[run].state == "done"
    output = cli("record", "mine", status=2).stderr
    assert "mine.skyrec already exists and was not changed. Name another file with -o" in output
    cli("down", "mine", "-y")
    assert cli.json("record", run[:6], "-o", "run.skyrec")["run"] == run
    assert list(played(cli.folder / "run.skyrec").view.runs) == [run]
    assert "no run or pool 'other'" in cli("record", "other", status=2).stderr
    lines = [json.loads(line) for line in cli("replay", "run.skyrec", "--dump").stdout.splitlines()]
    assert lines == list(RecordingReader.read(cli.folder / "run.skyrec").entries()) and len(lines) > 10
    (cli.folder / "cut").write_bytes((cli.folder / "mine.skyrec").read_bytes() + b"blk")
    assert "cut is truncated" in cli("replay", "cut", "--dump").stderr
    assert "the app needs a terminal" in cli("replay", "run.skyrec", status=2).stderr
