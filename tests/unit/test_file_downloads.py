"""Downloads of large results and output files, and the commands cp and forward."""

from __future__ import annotations

import os
import pickle
import socket
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import skyward_core as sky
from skyward_core.client import node_file_copy
from skyward_core.transport.file_and_result_downloads import MIN_BUFFER_SIZE, PARTS, IncomingOutput, ResultDownload
from skyward_tui.cli.commands.file_commands import _NODE_PATH, copy
from skyward_tui.cli.commands.hosts_trust_shell_forward import forward
from skyward_tui.cli.console_and_log_printer import Console

RUN = bytes(range(256)) * (MIN_BUFFER_SIZE // 128)  # twice as long as it must be

VALUES: dict[str, Any] = {
    "bytes": RUN,
    "bytearray": bytearray(RUN),
    "minimum size": RUN[:MIN_BUFFER_SIZE],
    "below minimum size": RUN[: MIN_BUFFER_SIZE - 1],
    "several": [RUN, bytearray(RUN), 1, RUN[:MIN_BUFFER_SIZE], "s", RUN[:-1], {"a": RUN[1:]}],
    "large values outside of frames": [RUN, (RUN[1:], RUN[2:]), 300, RUN[3:], None, (), RUN[4:]],
    "small": {"a": [1, 2.5, None, "x"]},
    "many frames": [str(number) for number in range(200_000)],
    "text": "ä" * MIN_BUFFER_SIZE,
    "type with its own reducer": OrderedDict(a=RUN, b={RUN[1:]}),
}


def pickled(value: Any) -> bytes:
    data: bytes = cloudpickle.dumps(value, protocol=5)
    return data


def land(landing: ResultDownload, data: bytes, piece: int) -> None:
    while landing.at < len(data):
        landing.write(data[landing.at : landing.at + piece])
    landing.close()


def landed(folder: Path, data: bytes) -> ResultDownload:
    landing = ResultDownload(folder / "x.pickle", len(data), in_place=True)
    land(landing, data, 1 << 20)
    return landing


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("piece", [65_521, 1 << 30])
@pytest.mark.parametrize("name", VALUES)
def test_downloaded_result_is_loaded_unchanged(tmp_path: Path, name: str, piece: int, in_place: bool) -> None:
    value = VALUES[name]
    data = pickled(value)
    landing = ResultDownload(tmp_path / "x.pickle", len(data), in_place=in_place)
    land(landing, data, piece)
    loaded = landing.load()
    assert loaded == value and type(loaded) is type(value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("in_place", [True, False])
def test_downloaded_result_file_is_private(tmp_path: Path, in_place: bool) -> None:
    before = os.umask(0o022)
    try:
        landing = ResultDownload(tmp_path / "x.item", 3, in_place=in_place)
        land(landing, b"N.x", 1)
    finally:
        os.umask(before)
    assert landing.path.stat().st_mode & 0o777 == 0o600


def test_arrays_of_a_downloaded_result_are_writable(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(MIN_BUFFER_SIZE, dtype="f8").reshape(-1, 64)
    data = pickled({"a": array, "b": array[:, 0]})
    landing = landed(tmp_path, data)
    assert landing.path.stat().st_size < array.nbytes // 8
    loaded = landing.load()
    assert (loaded["a"] == array).all() and (loaded["b"] == array[:, 0]).all()
    loaded["a"][0, 0] = 7


@pytest.mark.parametrize("data", [pickle.dumps([RUN, 1 << 40, "x"], protocol=2), b"no pickle" * MIN_BUFFER_SIZE])
def test_unknown_pickle_data_is_saved_unchanged(tmp_path: Path, data: bytes) -> None:
    landing = landed(tmp_path, data)
    assert landing.path.read_bytes() == data


def test_announced_length_beyond_the_data_takes_no_memory(tmp_path: Path) -> None:
    data = pickle.PROTO + b"\5" + pickle.BINBYTES8 + (1 << 62).to_bytes(8, "little") + RUN
    landing = landed(tmp_path, data)
    with pytest.raises((pickle.UnpicklingError, EOFError, MemoryError, OverflowError)):
        landing.load()


def test_result_is_saved_to_a_file_if_memory_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: bytes) -> None:
        raise MemoryError

    monkeypatch.setattr("skyward_core.transport.file_and_result_downloads.BytesIO", none)
    data = pickled(RUN)
    landing = landed(tmp_path, data)
    assert landing.path.read_bytes() == data


def test_partial_result_file_is_continued(tmp_path: Path) -> None:
    data = pickled(RUN)
    (tmp_path / "x.pickle").write_bytes(data[:100_000])
    landing = ResultDownload(tmp_path / "x.pickle", len(data))
    assert landing.at == 100_000
    land(landing, data, 1 << 20)
    assert landing.load() == RUN


# Files of ranks on their way here: several come at once, and share the folder of what is not whole yet.


def test_concurrent_output_downloads_do_not_remove_their_folder(tmp_path: Path) -> None:
    def come_and_go(name: str) -> None:
        for _ in range(300):
            IncomingOutput(tmp_path, name, 4, "first").drop()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(come_and_go, ("one", "other")))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to somebody else")
def test_download_folder_of_another_user_is_rejected(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    parts = tmp_path / PARTS
    parts.mkdir(mode=0o777)
    os.chown(parts, 65534, 65534)
    with pytest.raises(OSError, match="belongs to another user, who could change"):
        IncomingOutput(tmp_path, "x", 4, "first")
    parts.rmdir()
    (tmp_path / "elsewhere").mkdir()
    parts.symlink_to("elsewhere")
    with pytest.raises(FileExistsError):
        IncomingOutput(tmp_path, "x", 4, "first")
    os.chown(parts, 65534, 65534, follow_symlinks=False)
    with pytest.raises(OSError, match="belongs to another user"):
        IncomingOutput(tmp_path, "x", 4, "first")
    assert list((tmp_path / "elsewhere").iterdir()) == []


# What ``skyward-tui cp`` takes, and refuses, before it asks any host.


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("pool:", ("pool", None, "")), ("pool:a/b:c", ("pool", None, "a/b:c")), ("pool:3:/x", ("pool", "3", "/x")),
        ("pool:3", ("pool", None, "3")), ("./a:b", None), ("/a:b", None), ("file", None),
    ],
)  # fmt: skip
def test_node_path_is_split_into_pool_rank_and_path(text: str, parts: tuple[str, str | None, str] | None) -> None:
    found = _NODE_PATH.fullmatch(text)
    assert (found and (found["pool"], found["rank"], found["path"])) == parts


@pytest.mark.parametrize("words", [("a", "b"), ("p:a", "q:b")])
def test_cp_needs_exactly_one_path_on_a_node(words: tuple[str, str]) -> None:
    with pytest.raises(sky.UsageError, match="exactly one of SRC and DST must be on a node"):
        copy.function(Console(as_json=True), *words)


def test_cp_rejects_links_and_special_files_before_copying(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("12")
    assert [(each.parts, each.size) for each in node_file_copy._local_entries(tmp_path / "a")] == [
        ((), 0),
        (("file",), 2),
    ]
    (tmp_path / "a" / "link").symlink_to("file")
    for path in (tmp_path / "a", tmp_path / "a" / "link"):
        with pytest.raises(sky.UsageError, match="link is a link"):
            node_file_copy._local_entries(path)
    (tmp_path / "a" / "link").unlink()
    os.mkfifo(tmp_path / "a" / "pipe")
    with pytest.raises(sky.UsageError, match="neither a file nor a folder"):
        node_file_copy._local_entries(tmp_path / "a")
    with pytest.raises(sky.UsageError, match="No such file"):
        node_file_copy._local_entries(tmp_path / "none")


@pytest.mark.parametrize("path", ["..", "../x", "a/../b", "/a/..", "~/../x"])
def test_cp_rejects_parent_references_in_node_paths(path: str) -> None:
    with pytest.raises(sky.UsageError, match=r"contains \.\."):
        node_file_copy._check_remote_path(path)
    assert [node_file_copy._check_remote_path(each) for each in ("~", "~/a", "/b", "a..b")] == ["", "a", "/b", "a..b"]


@pytest.mark.parametrize("name", ["a/b", "/etc/passwd", ""])
async def test_cp_rejects_file_names_with_separators_from_a_node(name: str) -> None:
    class Listed:
        filename = name

    class Strange:
        async def scandir(self, path: str):
            yield Listed

    with pytest.raises(sky.PoolError, match="not a file name"):
        [each async for each in node_file_copy._list_names(Strange(), "/data")]


def test_cp_target_on_this_machine_is_new_or_a_plain_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("file")
    assert node_file_copy._local_target(tmp_path, "file", False) == tmp_path / "file"
    for path, is_folder, why in (
        (tmp_path / "link", False, "as a link"),
        (tmp_path / "file", True, "as another file or folder"),
        (tmp_path / "none" / "x", False, "does not exist on this machine"),
    ):
        with pytest.raises(sky.UsageError, match=why):
            node_file_copy._local_target(path, "x", is_folder)


def test_forward_reports_a_local_port_in_use_first() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(sky.UsageError, match=rf"cannot listen on port {port} of this machine: .*:8123$"):
            forward.function(Console(as_json=True), "no-pool-is-asked-for", (f"{port}:8123",))
