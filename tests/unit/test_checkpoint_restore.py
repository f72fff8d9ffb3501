"""Checkpoints for the next attempt: which files are copied to nodes, and how a node stores them."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.model.output_files import WrittenFile
from skyward_core.node.agent.output_checkpoint_and_source_files import (
    OutputFileHandler,
    clear_checkpoints,
    file_version,
    find_written_files,
    restore_file,
)
from skyward_core.pool.checkpoint_copies import CheckpointCopies, _copy_missing, list_copies
from skyward_core.pool.checkpoint_store import CheckpointStore, LocalFile
from skyward_core.pool.output_files import FetchedRow, FileListing, OutputRecord, Outputs, file_fingerprint
from skyward_core.store.state_folder import pool_path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the copied working folder of a node."""
    folder = tmp_path / "work" / "project"
    folder.mkdir(parents=True)
    Path(f"{folder}.json").write_text("[]")
    return folder


@pytest.fixture
def blob(tmp_path: Path) -> Path:
    blob = tmp_path / "blob"
    blob.write_bytes(b"new")
    return blob


def restore(folder: Path, blob: Path, path: str) -> bool:
    (sent := blob.with_name("sent")).write_bytes(blob.read_bytes())
    return restore_file(str(folder), sent, sent.stat().st_size, path, 1000.0)


def test_restored_file_has_content_and_time_and_is_not_listed_as_written(folder: Path, blob: Path) -> None:
    assert restore(folder, blob, "checkpoints/r/model.pt")
    target = folder / "checkpoints" / "r" / "model.pt"
    assert (target.read_bytes(), target.stat().st_mtime) == (b"new", 1000.0)
    assert [each.name for each in target.parent.iterdir()] == ["model.pt"]
    assert find_written_files(str(folder), [], 0.0, float("inf")) == ([], 0)
    blob.write_bytes(b"newer")
    assert restore(folder, blob, "checkpoints/r/model.pt"), "an earlier copy is replaced"
    assert target.read_bytes() == b"newer"
    target.write_bytes(b"of a rank")
    listed, _ = find_written_files(str(folder), [], 0.0, float("inf"))
    assert [each["path"] for each in listed] == ["checkpoints/r/model.pt"]
    assert not restore(folder, blob, "checkpoints/r/model.pt"), "the ranks have changed the file"
    assert target.read_bytes() == b"of a rank"
    arguments = str(folder), blob, 5, "checkpoints/r/model.pt", 1000.0
    assert not restore_file(*arguments, instead="another version")
    assert restore_file(*arguments, instead=file_version(target.stat())), "the file of the rank is cut off"
    assert target.read_bytes() == b"newer"


def test_file_that_another_client_has_just_stored_is_no_error(folder: Path, blob: Path) -> None:
    arguments = str(folder), blob, 3, "checkpoints/r/model.pt", 1000.0
    assert restore_file(*arguments) and not blob.exists()
    assert restore_file(*arguments)
    with pytest.raises(FileNotFoundError):
        restore_file(*arguments[:-1], 2000.0)
    (folder / "checkpoints/r/model.pt").write_bytes(b"of a rank")
    with pytest.raises(FileNotFoundError):
        restore_file(*arguments)


async def test_files_of_two_clients_are_listed_both(folder: Path, tmp_path: Path) -> None:
    config = SimpleNamespace(cwd=str(folder), blobs=tmp_path)
    handler = OutputFileHandler(SimpleNamespace(config=config))  # type: ignore[arg-type]
    answers: list[Any] = []
    connection: Any = SimpleNamespace(send=answers.append)
    headers: list[Any] = []
    for number in range(8):
        (tmp_path / f"b{number}").write_bytes(b"new")
        headers.append({"id": number, "blob": f"b{number}", "size": 3, "path": f"{number}.pt", "at": 1000.0})
    await asyncio.gather(*(handler.restore_file(connection, header) for header in headers))
    assert [answer["written"] for answer in answers] == [True] * 8
    assert find_written_files(str(folder), [], 0.0, float("inf")) == ([], 0)


def test_outdated_copy_is_deleted_with_its_empty_folders_only(folder: Path, blob: Path) -> None:
    assert restore(folder, blob, "checkpoints/r/step-1/a/w.pt") and restore(folder, blob, "checkpoints/r/step-2/w.pt")
    (folder / "checkpoints/r/step-2/own").touch()
    outdated = ["checkpoints/r/step-1/a/w.pt", "checkpoints/r/step-2/w.pt", "checkpoints/r/step-0/none.pt"]
    assert restore_file(str(folder), blob, 3, "checkpoints/r/step-3/w.pt", 1000.0, outdated=outdated)
    assert sorted(str(each.relative_to(folder / "checkpoints/r")) for each in folder.rglob("*/r/**/*")) == [
        "step-2", "step-2/own", "step-3", "step-3/w.pt",
    ]  # fmt: skip


@pytest.mark.parametrize("content", ["", "[]", '{"model.pt": ', "[" * 100_000])
def test_files_are_kept_and_listed_if_the_list_of_restored_files_is_damaged(
    content: str, folder: Path, blob: Path
) -> None:
    """A power cut may leave an empty list, and ranks can write to it."""
    assert restore(folder, blob, "model.pt")
    Path(f"{folder}.restored.json").write_text(content)
    assert [each["path"] for each in find_written_files(str(folder), [], 0.0, float("inf"))[0]] == ["model.pt"]
    assert not restore(folder, blob, "model.pt")
    assert restore(folder, blob, "other.pt")


@pytest.mark.parametrize("path", ["../out", "/etc/out", "link/out", "a/../../out", ""])
def test_no_path_leads_out_of_the_working_folder(path: str, folder: Path, blob: Path) -> None:
    outside = folder.parent / "elsewhere"
    outside.mkdir()
    (folder / "link").symlink_to(outside)
    with pytest.raises(OSError, match=r".+"):
        restore(folder, blob, path)
    assert not list(outside.iterdir()) and not (folder.parent / "out").exists()


def test_link_at_the_target_is_not_followed(folder: Path, blob: Path) -> None:
    outside = folder.parent / "elsewhere"
    outside.write_text("mine")
    (folder / "model.pt").symlink_to(outside)
    assert not restore(folder, blob, "model.pt")
    (folder / "other.pt.skyward-part").symlink_to(outside)
    assert restore(folder, blob, "other.pt")
    os.mkfifo(folder / "third.pt.skyward-part")  # opening it would wait for a reader
    assert restore(folder, blob, "third.pt")
    assert outside.read_text() == "mine" and not (folder / "other.pt").is_symlink()


def test_outdated_copies_that_the_user_fetched_to_another_folder_stay(tmp_path: Path) -> None:
    context = SimpleNamespace(is_local=False, row=SimpleNamespace(spec={"image": {"checkpoints": ["**"]}}))
    outputs: Any = SimpleNamespace(_context=context, _base=tmp_path / "outputs", _outdated=set())
    for folder in ("outputs", "mine"):
        (target := tmp_path / folder / "a.pt").parent.mkdir()
        target.touch()
        Outputs.remove_outdated(outputs, [FetchedRow(str(target), 0, "a.pt", "", file_fingerprint(target) or (0, 0))])
        assert target.exists() == (folder == "mine")


@pytest.mark.parametrize("is_full", [False, True])
async def test_hosts_delete_only_checkpoints_that_are_on_the_disk_of_the_client(
    is_full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (target := tmp_path / "a.pt").touch()
    row = FetchedRow(str(target), 0, "checkpoints/r/a.pt", "v", (0, 0))
    flushed, asked = list[int](), list[Any]()

    def fsync(descriptor: int) -> None:
        flushed.append(os.fstat(descriptor).st_ino)
        if is_full:
            raise OSError("No space left on device")

    async def ask(request: Any) -> None:
        asked.append(request)

    monkeypatch.setattr(os, "fsync", fsync)
    links = [SimpleNamespace(node=0, ask=ask)]
    context = SimpleNamespace(checkpoints=SimpleNamespace(resumed={}), present_links=links)
    record = SimpleNamespace(rows=lambda: [row])
    outputs: Any = SimpleNamespace(_context=context, _record=record, _checkpoint_folders=lambda: ["checkpoints/r"])
    await Outputs._clear_nodes(outputs, FileListing([WrittenFile(row.path, 0, 0.0, 0, "v")], 0, {}, {}), [])
    assert flushed == [each.stat().st_ino for each in (target, tmp_path)][: 1 if is_full else 2]
    assert [each["files"] for each in asked] == ([] if is_full else [[{"path": row.path, "version": "v"}]])


async def test_files_with_the_same_content_are_copied_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes move a blob to its path, so that another file needs its own transfer. Attempts and scans copy files."""
    blobs = set[str]()

    async def ask(request: Any) -> tuple[dict[str, Any], bytes]:
        if request["t"] == "drop":
            blobs.difference_update(request["blobs"])
        elif request["blob"] not in blobs:
            return {"error": "No such file or directory"}, b""
        else:
            blobs.remove(request["blob"])
        return {}, b""

    async def send(_: Any, blob: Any, *__: object) -> dict[Any, str]:
        blobs.add(blob.name)
        await asyncio.sleep(0)
        return {}

    async def call(function: Any, *arguments: object) -> object:
        return function(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", call)
    monkeypatch.setattr(CheckpointCopies, "_send", send)
    context: Any = SimpleNamespace(outputs=SimpleNamespace(torn_versions={}))
    link: Any = type("NodeLink", (), {"node": 1, "ask": staticmethod(ask)})()  # a key
    copies, none = CheckpointCopies(context), FileListing([], 0, {}, {})
    rows = [FetchedRow(str(tmp_path), 0, f"step-{step}/config.json", "v", (2, 0), "a" * 64) for step in (1, 2)]
    assert await asyncio.gather(*(copies._copy(row, [link], none) for row in rows)) == [{}, {}]


def test_own_folder_of_the_user_gets_only_the_newest_complete_set(tmp_path: Path) -> None:
    rows = {}
    for step, text in {1: "[1]", 2: "[2]", 3: "[3"}.items():
        (target := tmp_path / f"{step}.json").write_text(text)
        path = f"out/step-{step}/a.json"
        rows[path] = FetchedRow(str(target), 0, path, "", (len(text), step))
    _copy_missing(rows, tmp_path / "own")
    assert [each.read_text() for each in (tmp_path / "own").rglob("a.json")] == ["[2]"]


def test_incomplete_blob_and_own_folder_of_the_user_are_refused(folder: Path, blob: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="3 of 4 bytes"):
        restore_file(str(folder), blob, 4, "model.pt", 1000.0)
    with pytest.raises(OSError, match="not a path in a copied working folder"):
        restore(tmp_path, blob, "model.pt")
    assert json.loads(Path(f"{folder}.json").read_text()) == [] and not list(folder.iterdir())


def test_checkpoints_that_the_client_has_are_deleted_with_their_folders(folder: Path, blob: Path) -> None:
    assert restore(folder, blob, "checkpoints/a/copy.pt") and restore(folder, blob, "checkpoints/b/copy.pt")
    versions = {}
    for path in ("checkpoints/a/step-1/w.pt", "checkpoints/b/w.pt", "checkpoints/c/w.pt", "out/w.pt"):
        (target := folder / path).parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"1")
        versions[path] = file_version(target.stat())
    (folder / "checkpoints" / "b" / "w.pt").write_bytes(b"changed")
    (folder / "checkpoints" / "d").mkdir()
    (folder / "checkpoints" / "e").symlink_to(folder.parent)
    parents = [f"checkpoints/{run}" for run in "abde"]
    files: list[Any] = [{"path": path, "version": version} for path, version in versions.items()]
    clear_checkpoints(str(folder), parents, [*files, {"path": "checkpoints/a/copy.pt"}])
    left = sorted(str(each.relative_to(folder)) for each in folder.rglob("*.pt"))
    assert left == ["checkpoints/b/copy.pt", "checkpoints/b/w.pt", "checkpoints/c/w.pt", "out/w.pt"]
    assert {each.name for each in (folder / "checkpoints").iterdir()} == {"b", "c", "e"}
    clear_checkpoints(str(folder), parents, [{"path": "checkpoints/b/copy.pt"}])
    for run in "bc":
        (folder / "checkpoints" / run / "w.pt").unlink()
    (folder / "checkpoints" / "e").unlink()
    clear_checkpoints(str(folder), ["checkpoints/b", "checkpoints/c"])
    assert [each.name for each in folder.iterdir()] == ["out"]


def test_places_with_an_earlier_version_of_a_file_are_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of node 1 and the only copy in the store have the size of the newest file, and are older."""
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    store, path, target = CheckpointStore(f"file://{tmp_path}/store"), "checkpoints/r/a.pt", tmp_path / "a.pt"
    spec = {"cwd": str(tmp_path), "options": {"checkpoint_store": store.url}, "image": {}}
    row: Any = SimpleNamespace(key="pool", spec=spec)
    pool_path("pool").mkdir(parents=True)
    record = OutputRecord(pool_path("pool") / "outputs.jsonl")

    def places(at: float) -> list[str]:
        files = [WrittenFile(path, 1, at, 0, "v0"), WrittenFile(path, 1, 1000.0, 1, "v1")]
        (found,) = list_copies(row, "r", FileListing(files, 0, {}, {}), is_local=False).copies
        assert found.folder == str(tmp_path)
        return found.places

    for at, expected in ((1000.0, ["client", "node 0", "node 1", "store"]), (1100.0, ["client", "node 0"])):
        target.write_bytes(b"1")
        os.utime(target, (at, at))
        record.add(WrittenFile(path, 1, at, 0, "v0"), target)
        if at == 1000.0:
            store.save("r", {path: LocalFile(target, *file_fingerprint(target) or (0, 0))}, 2)
        assert places(at) == expected
