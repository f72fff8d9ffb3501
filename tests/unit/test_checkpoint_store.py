"""Copies of checkpoints in a store: a folder through fsspec, and a bucket of moto's S3 server."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.model.errors import UsageError
from skyward_core.pool.checkpoint_store import CheckpointStore, LocalFile, check_store, open_files

RUN = "d25d66acfd"


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        boto3.client("s3").create_bucket(Bucket="models")
        yield "s3://models/of/team"
    server.stop()


@pytest.fixture(params=["file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file://{tmp_path}/shared" if request.param == "file" else str(request.getfixturevalue("bucket"))


class Disk:
    """Checkpoint files of a run on the client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, step: int, *names: str) -> dict[str, LocalFile]:
        files = {}
        for name in names:
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() or "latest" in name:
                path.write_text(f"{name} of step {step}")
            found = path.stat()
            files[name] = LocalFile(path, found.st_size, found.st_mtime_ns)
        return files


def contents(store: CheckpointStore, folder: Path) -> dict[str, str]:
    return {file.path: path.read_text() for file, path in store.load(RUN, folder)}


def count_names(monkeypatch: pytest.MonkeyPatch, store: CheckpointStore, name: str) -> list[str]:
    """Return a list that receives the names of files that an operation is called with."""
    calls: list[str] = []
    files = store._files
    run = getattr(files, name)

    def call(*arguments: Any) -> Any:
        calls.append(str(arguments[-1]))
        return run(*arguments)

    monkeypatch.setattr(files, name, call)
    return calls


def test_newest_copy_is_loaded_and_older_ones_are_deleted(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, disk = CheckpointStore(url), Disk(tmp_path / "disk")
    assert store.load(RUN, tmp_path / "none") == []
    uploads = count_names(monkeypatch, store, "upload")
    store._files.write(f"{RUN}/notes.json", b"of the user")
    for step in range(1, 5):
        assert store.save(RUN, disk.save(step, f"step-{step}/a b.pt", "fixed.pt", "latest.pt"), keep=2)
    assert len([each for each in uploads if each.endswith("/fixed.pt")]) == 1, "an unchanged file is sent once"
    assert contents(CheckpointStore(url), tmp_path / "new client") == {
        "step-4/a b.pt": "step-4/a b.pt of step 4", "fixed.pt": "fixed.pt of step 1", "latest.pt": "latest.pt of step 4"
    }  # fmt: skip
    assert store.stored_versions(RUN).keys() == {"step-3/a b.pt", "step-4/a b.pt", "fixed.pt", "latest.pt"}
    assert len(store._manifests(RUN)) == 2 and store._files.read(f"{RUN}/notes.json") == b"of the user"
    assert store.load("another", tmp_path / "none") == []


def test_interrupted_upload_is_never_loaded(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client dies before any of the operations of an upload, or a file changes meanwhile."""
    store, disk = CheckpointStore(f"{url}/x"), Disk(tmp_path / "disk")
    assert store.save(RUN, disk.save(1, "a.pt", "latest.pt"), keep=1)
    before = {"a.pt": "a.pt of step 1", "latest.pt": "latest.pt of step 1"}
    later = disk.save(2, "b.pt", "c.pt", "latest.pt")
    for operation, allowed in (("upload", 0), ("upload", 2), ("write", 0)):
        with monkeypatch.context() as patch:
            run, left = getattr(store._files, operation), [allowed]

            def die(*arguments: Any, run: Any = run, left: list[int] = left) -> None:
                left[0] -= 1
                if left[0] < 0:
                    raise ConnectionError("the network is gone")
                run(*arguments)

            patch.setattr(store._files, operation, die)
            with pytest.raises(OSError, match="the network is gone"):
                store.save(RUN, later, keep=1)
        assert contents(CheckpointStore(f"{url}/x"), tmp_path / f"loaded-{operation}-{allowed}") == before
    later["c.pt"].path.write_text("changed")
    assert not store.save(RUN, later, keep=1)
    assert contents(store, tmp_path / "loaded") == before


def test_damaged_copy_is_passed_over(url: str, tmp_path: Path) -> None:
    store, disk = CheckpointStore(f"{url}/y"), Disk(tmp_path / "disk")
    for step in (1, 2):
        assert store.save(RUN, disk.save(step, "latest.pt"), keep=2)
    newest = store._manifests(RUN)[0]
    store._files.write(f"{RUN}/{newest.removesuffix('.json')}/latest.pt", b"damaged.pt of step 2"[:18])
    assert contents(store, tmp_path / "older") == {"latest.pt": "latest.pt of step 1"}


@pytest.mark.parametrize(
    "keys",
    [
        {"path": "../out"}, {"path": "/etc/x"}, {"name": "../../secret"}, {"size": -1}, {"at": "now"}, {"sha256": 3},
        {"size": 1 << 60}, {"path": "a\0b"}, {"more": 1},
    ],
)  # fmt: skip
def test_hostile_manifest_of_a_store_is_refused(keys: dict[str, Any], tmp_path: Path) -> None:
    store, disk = CheckpointStore(f"file://{tmp_path}/shared"), Disk(tmp_path / "disk")
    assert store.save(RUN, disk.save(1, "a.pt"), keep=9)
    place = tmp_path / "shared" / RUN
    good = json.loads((place / store._manifests(RUN)[0]).read_text())["files"][0]
    newer = [place / f"99999999T000000-00000000{number}.json" for number in range(4)]
    newer[0].write_text(json.dumps({"files": [good | keys]}))
    newer[1].write_text("[" * 9999)
    os.mkfifo(newer[2])  # reading it would wait for a writer
    newer[3].symlink_to("/dev/zero")
    assert contents(store, tmp_path / "loaded") == {"a.pt": "a.pt of step 1"}
    assert {each.name for each in (tmp_path / "loaded").rglob("*")} == {"a.pt"}
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_links_and_pipes_in_a_shared_folder_are_not_read(kind: str, tmp_path: Path) -> None:
    store, disk = CheckpointStore(f"file://{tmp_path}/shared"), Disk(tmp_path / "disk")
    assert store.save(RUN, disk.save(1, "a.pt"), keep=9)
    (stored,) = (tmp_path / "shared").rglob("a.pt")
    stored.unlink()
    os.mkfifo(stored) if kind == "pipe" else stored.symlink_to(disk.folder / "a.pt")
    with pytest.raises(OSError, match="the size of a"):
        store.load(RUN, tmp_path / "loaded")
    assert not (tmp_path / "loaded").exists()


def test_missing_library_is_named_with_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UsageError, match=r"pip install 'skyward-tui\[checkpoints\]'"):
        open_files("gs://models/runs")
    monkeypatch.undo()
    with pytest.raises(UsageError, match="Cannot open nothing://models"):
        open_files("nothing://models")


@pytest.mark.parametrize("url", ["models", "s3://", "s3://key:secret@models/x", "az://x?sig=secret", "/mnt/shared", 3])
def test_store_needs_a_url_without_credentials(url: Any) -> None:
    with pytest.raises(sky.SpecError, match="checkpoint_store") as caught:
        sky.Options(checkpoint_store=url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("store", "pattern", "is_copied"),
    [
        ("checkpoints/store", "checkpoints/**", True), ("checkpoints", "checkpoints/**", True), ("", "*.pt", True),
        ("store", "*.pt", True), ("store", "out/**", False), ("", "out/**", False), ("../store", "**", False),
    ],
)  # fmt: skip
def test_store_whose_content_would_be_copied_is_rejected(
    store: str, pattern: str, is_copied: bool, tmp_path: Path
) -> None:
    (link := tmp_path / "link").symlink_to(tmp_path)
    for cwd in (tmp_path / "project", link / "project"):
        url = f"file://{tmp_path}/project/{store}"
        with pytest.raises(UsageError, match="Choose a folder outside of") if is_copied else nullcontext():
            check_store(url, cwd, [pattern])
        check_store(url, cwd, [])
