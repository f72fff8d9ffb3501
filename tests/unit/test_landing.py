"""Where large results land: what is long in a pickle stays where it came to, and all of it is loaded as it was."""

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
from skyward_tui.cli.commands.cp import _NODE_PATH, copy
from skyward_tui.cli.commands.hosts_trust_shell_forward import forward
from skyward_tui.cli.console import Console

RUN = bytes(range(256)) * (MIN_BUFFER_SIZE // 128)  # twice as long as it must be

VALUES: dict[str, Any] = {
    "bytes": RUN,
    "bytearray": bytearray(RUN),
    "just long enough": RUN[:MIN_BUFFER_SIZE],
    "too short": RUN[: MIN_BUFFER_SIZE - 1],
    "several": [RUN, bytearray(RUN), 1, RUN[:MIN_BUFFER_SIZE], "s", RUN[:-1], {"a": RUN[1:]}],
    "alone outside of frames": [RUN, (RUN[1:], RUN[2:]), 300, RUN[3:], None, (), RUN[4:]],
    "small": {"a": [1, 2.5, None, "x"]},
    "many frames": [str(number) for number in range(200_000)],
    "text": "ä" * MIN_BUFFER_SIZE,
    "pickler's own": OrderedDict(a=RUN, b={RUN[1:]}),
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
def test_a_value_is_loaded_as_it_was(tmp_path: Path, name: str, piece: int, in_place: bool) -> None:
    value = VALUES[name]
    data = pickled(value)
    landing = ResultDownload(tmp_path / "x.pickle", len(data), in_place=in_place)
    land(landing, data, piece)
    loaded = landing.load()
    assert loaded == value and type(loaded) is type(value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("in_place", [True, False])
def test_nobody_else_reads_what_lands(tmp_path: Path, in_place: bool) -> None:
    before = os.umask(0o022)
    try:
        landing = ResultDownload(tmp_path / "x.item", 3, in_place=in_place)
        land(landing, b"N.x", 1)
    finally:
        os.umask(before)
    assert landing.path.stat().st_mode & 0o777 == 0o600


def test_bytes_come_one_by_one(tmp_path: Path) -> None:
    data = pickled(VALUES["small"])
    landing = ResultDownload(tmp_path / "x.pickle", len(data), in_place=True)
    land(landing, data, 1)
    assert landing.load() == VALUES["small"]


def test_what_is_long_is_in_no_file(tmp_path: Path) -> None:
    data = pickled(VALUES["several"])
    landing = landed(tmp_path, data)
    assert landing.path.stat().st_size < 1000
    room = ResultDownload(tmp_path / "y.pickle", len(data))
    land(room, data, 1 << 20)
    assert room.path.read_bytes() == data


def test_what_was_one_object_is_one_again(tmp_path: Path) -> None:
    data = pickled([RUN, RUN])
    landing = landed(tmp_path, data)
    first, second = landing.load()
    assert first == RUN and first is second


def test_arrays_can_be_written_to(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(MIN_BUFFER_SIZE, dtype="f8").reshape(-1, 64)
    data = pickled({"a": array, "b": array[:, 0]})
    landing = landed(tmp_path, data)
    assert landing.path.stat().st_size < array.nbytes // 8
    loaded = landing.load()
    assert (loaded["a"] == array).all() and (loaded["b"] == array[:, 0]).all()
    loaded["a"][0, 0] = 7


@pytest.mark.parametrize("data", [pickle.dumps([RUN, 1 << 40, "x"], protocol=2), b"no pickle" * MIN_BUFFER_SIZE])
def test_what_none_of_ours_made_lands_as_it_is(tmp_path: Path, data: bytes) -> None:
    landing = landed(tmp_path, data)
    assert landing.path.read_bytes() == data


def test_a_length_beyond_the_end_takes_no_memory(tmp_path: Path) -> None:
    data = pickle.PROTO + b"\5" + pickle.BINBYTES8 + (1 << 62).to_bytes(8, "little") + RUN
    landing = landed(tmp_path, data)
    with pytest.raises((pickle.UnpicklingError, EOFError, MemoryError, OverflowError)):
        landing.load()


def test_where_memory_is_short_the_file_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: bytes) -> None:
        raise MemoryError

    monkeypatch.setattr("skyward_core.transport.file_and_result_downloads.BytesIO", none)
    data = pickled(RUN)
    landing = landed(tmp_path, data)
    assert landing.path.read_bytes() == data


def test_a_file_that_is_there_is_gone_on_with(tmp_path: Path) -> None:
    data = pickled(RUN)
    (tmp_path / "x.pickle").write_bytes(data[:100_000])
    landing = ResultDownload(tmp_path / "x.pickle", len(data))
    assert landing.at == 100_000
    land(landing, data, 1 << 20)
    assert landing.load() == RUN


def test_in_place_nothing_earlier_counts(tmp_path: Path) -> None:
    data = pickled(RUN)
    for _ in range(2):
        landing = ResultDownload(tmp_path / "x.pickle", len(data), in_place=True)
        assert landing.at == 0
        landing.write(data[:1_000_000])
        landing.close()
    land(landing, data, 1 << 20)
    assert landing.load() == RUN


# Files of ranks on their way here: several come at once, and share the folder of what is not whole yet.


def test_one_that_is_done_takes_no_folder_from_one_that_begins(tmp_path: Path) -> None:
    def come_and_go(name: str) -> None:
        for _ in range(300):
            IncomingOutput(tmp_path, name, 4, "first").drop()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(come_and_go, ("one", "other")))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to somebody else")
def test_a_folder_that_a_stranger_made_first_is_not_used(tmp_path: Path) -> None:
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
        ("pool:", ("pool", None, "")),
        ("pool:a/b:c", ("pool", None, "a/b:c")),
        ("pool:3:/x", ("pool", "3", "/x")),
        ("pool:3", ("pool", None, "3")),
        ("./a:b", None),
        ("/a:b", None),
        ("file", None),
    ],
)
def test_which_word_is_on_a_node(text: str, parts: tuple[str, str | None, str] | None) -> None:
    found = _NODE_PATH.fullmatch(text)
    assert (found and (found["pool"], found["rank"], found["path"])) == parts


@pytest.mark.parametrize("words", [("a", "b"), ("p:a", "q:b")])
def test_one_is_here_and_one_on_a_node(words: tuple[str, str]) -> None:
    with pytest.raises(sky.UsageError, match="exactly one of SRC and DST must be on a node"):
        copy.function(Console(as_json=True), *words)


def test_links_and_what_is_no_file_are_refused_before_anything_is_copied(tmp_path: Path) -> None:
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
def test_no_path_leads_up(path: str) -> None:
    with pytest.raises(sky.UsageError, match=r"contains \.\."):
        node_file_copy._check_remote_path(path)
    assert [node_file_copy._check_remote_path(each) for each in ("~", "~/a", "/b", "a..b")] == [
        "",
        "a",
        "/b",
        "a..b",
    ]


@pytest.mark.parametrize("name", ["a/b", "/etc/passwd", ""])
async def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    class Listed:
        filename = name

    class Strange:
        async def scandir(self, path: str):
            yield Listed

    with pytest.raises(sky.PoolError, match="not a file name"):
        [each async for each in node_file_copy._list_names(Strange(), "/data")]


def test_a_place_here_is_a_new_one_or_a_file(tmp_path: Path) -> None:
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


def test_a_port_of_this_machine_that_is_in_use_is_told_before_any_page_is() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(sky.UsageError, match=rf"cannot listen on port {port} of this machine: .*:8123$"):
            forward.function(Console(as_json=True), "no-pool-is-asked-for", (f"{port}:8123",))
