"""Where large results land: what is long in a pickle stays where it came to, and all of it is loaded as it was."""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from skyward_core.transport.downloads import MIN_BUFFER_SIZE, ResultDownload

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
    landing = ResultDownload(tmp_path / "x.pickle", len(data), in_place=True)
    land(landing, data, 1 << 20)
    assert landing.path.stat().st_size < 1000
    room = ResultDownload(tmp_path / "y.pickle", len(data))
    land(room, data, 1 << 20)
    assert room.path.read_bytes() == data


def test_what_was_one_object_is_one_again(tmp_path: Path) -> None:
    data = pickled([RUN, RUN])
    landing = ResultDownload(tmp_path / "x.pickle", len(data), in_place=True)
    land(landing, data, 1 << 20)
    first, second = landing.load()
    assert first == RUN and first is second


def test_arrays_can_be_written_to(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(MIN_BUFFER_SIZE, dtype="f8").reshape(-1, 64)
    data = pickled({"a": array, "b": array[:, 0]})
    landing = ResultDownload(tmp_path / "x.pickle", len(data), in_place=True)
    land(landing, data, 1 << 20)
    assert landing.path.stat().st_size < array.nbytes // 8
    loaded = landing.load()
    assert (loaded["a"] == array).all() and (loaded["b"] == array[:, 0]).all()
    loaded["a"][0, 0] = 7


@pytest.mark.parametrize("data", [pickle.dumps([RUN, 1 << 40, "x"], protocol=2), b"no pickle" * MIN_BUFFER_SIZE])
def test_what_none_of_ours_made_lands_as_it_is(tmp_path: Path, data: bytes) -> None:
    landing = ResultDownload(tmp_path / "x.pickle", len(data), in_place=True)
    land(landing, data, 1 << 20)
    assert landing.path.read_bytes() == data


def test_a_length_beyond_the_end_takes_no_memory(tmp_path: Path) -> None:
    data = pickle.PROTO + b"\5" + pickle.BINBYTES8 + (1 << 62).to_bytes(8, "little") + RUN
    landing = ResultDownload(tmp_path / "x.pickle", len(data), in_place=True)
    land(landing, data, 1 << 20)
    with pytest.raises((pickle.UnpicklingError, EOFError, MemoryError, OverflowError)):
        landing.load()


def test_where_memory_is_short_the_file_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: bytes) -> None:
        raise MemoryError

    monkeypatch.setattr("skyward_core.transport.downloads.BytesIO", none)
    data = pickled(RUN)
    landing = ResultDownload(tmp_path / "x.pickle", len(data), in_place=True)
    land(landing, data, 1 << 20)
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
