"""What holds whatever comes in, and however it happens to be cut: properties of the parts that take in data."""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Sequence
from itertools import accumulate, pairwise, product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward_core.node.agent.log_tailing import LogTail
from skyward_core.protocol.frame_codec import CHUNK_BYTES, Decoder, WireError, encode_frame
from skyward_core.runtime.instance_info import InstanceInfo, using
from skyward_core.runtime.sharding import shard
from skyward_core.store.pool_folder import PoolFolder
from skyward_core.store.run_logs import LogRange, merge_ranges
from skyward_core.tasks.argument_parsing import convert
from skyward_core.util.redaction import MIN_SECRET_LENGTH, Redactor
from skyward_core.views.log_buffer import LogRing
from tests.support.any_text import CHARACTERS

CUTS = st.lists(st.integers(0, 400), max_size=12)


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:stop] for start, stop in pairwise(edges)] or [data]


# -- secrets ---------------------------------------------------------------------------------------------

ALPHABET = st.characters(codec="ascii", min_codepoint=33, exclude_characters="*")
SECRET = st.text(ALPHABET, min_size=MIN_SECRET_LENGTH, max_size=24).filter(lambda value: len(set(value)) > 3)


class Sent:
    """Stands for a connection to a client."""

    is_open, is_write_paused = True, False

    def __init__(self) -> None:
        self.data = b""

    def send(self, header: dict[str, Any], body: bytes) -> None:
        assert header["at"] == len(self.data)
        self.data += body


def followed(pieces: Sequence[bytes], redactor: Redactor) -> bytes:
    """What a client gets of a log that is written in pieces, and looked at after each of them."""
    with tempfile.TemporaryDirectory() as folder:
        log, sent = Path(folder, "r000.out"), Sent()
        log.touch()
        with open(log, "ab", buffering=0) as file:
            tail = LogTail(Path(folder), sent, {}, lambda: True, redactor, lambda: None, lambda name: 1 << 62)  # type: ignore[arg-type]
            tail._open_new_files()
            for piece in pieces:
                file.write(piece)
                while tail._send("r000.out", CHUNK_BYTES):
                    pass
            tail.flush({"r000.out": sum(map(len, pieces))})
        for descriptor in tail._files.values():
            os.close(descriptor)
        return sent.data


@given(
    st.lists(SECRET, min_size=1, max_size=3),
    st.lists(st.one_of(st.integers(0, 2), st.binary(max_size=20)), max_size=8),
    CUTS,
)
def test_no_secret_survives_in_a_log_however_it_is_cut(
    secrets: list[str], parts: list[int | bytes], places: list[int]
) -> None:
    texts = [part if isinstance(part, bytes) else secrets[part % len(secrets)].encode() for part in parts]
    redactor, data = Redactor(secrets), b" ".join(texts)
    shown = followed(cut(data, places), redactor)
    assert shown == redactor.redact_bytes(data)
    assert len(shown) == len(data)
    assert not any(secret.encode() in shown for secret in secrets)


# -- frames ----------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.text(CHARACTERS, max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(CHARACTERS, max_size=4), inner, max_size=3),
    max_leaves=6,
)
HEADERS = st.builds(
    lambda more, kind: more | {"t": kind},
    st.dictionaries(st.text(CHARACTERS, max_size=8), JSON, max_size=4),
    st.text(CHARACTERS, max_size=8),
)
FRAMES = st.lists(st.tuples(HEADERS, st.binary(max_size=40)), max_size=5)


def decoded(pieces: Sequence[bytes]) -> tuple[list[tuple[dict[str, Any], bytes]], bool]:
    """The frames of pieces, and whether what followed them was none."""
    decoder, found = Decoder(), []
    try:
        for piece in pieces:
            for each in decoder.feed(piece):
                found.append(each)
    except WireError:
        return found, True
    return found, False


@given(FRAMES, CUTS)
def test_frames_arrive_as_they_were_sent_however_they_are_cut(
    frames: list[tuple[dict[str, Any], bytes]], places: list[int]
) -> None:
    stream = b"".join(encode_frame(header, body) for header, body in frames)
    assert decoded(cut(stream, places)) == (frames, False)


@given(
    FRAMES,
    st.binary(max_size=60) | st.binary(max_size=30).map(lambda head: struct.pack("!II", len(head), 0) + head),
    CUTS,
)
def test_any_bytes_are_frames_or_an_error(
    frames: list[tuple[dict[str, Any], bytes]], garbage: bytes, places: list[int]
) -> None:
    stream = b"".join(encode_frame(header, body) for header, body in frames) + garbage
    whole = decoded([stream])
    assert whole[0][: len(frames)] == frames
    assert decoded(cut(stream, places)) == whole


@given(HEADERS, st.binary(min_size=1, max_size=20))
def test_what_follows_a_header_in_its_place_is_an_error(header: dict[str, Any], more: bytes) -> None:
    head = encode_frame(header)[8:] + more
    assert decoded([struct.pack("!II", len(head), 0) + head]) == ([], True)


# -- logs ------------------------------------------------------------------------------------------------


LOG = st.lists(st.binary(max_size=6), max_size=40).map(b"\n".join)


@given(LOG, CUTS, st.integers(1, 20), st.integers(-5, 40), st.integers(-5, 40))
def test_a_window_of_a_ring_is_that_part_of_the_whole_log(
    data: bytes, places: list[int], capacity: int, start: int, stop: int
) -> None:
    whole, ring = LogRing(1000), LogRing(capacity)
    whole.feed(data)
    for piece in cut(data, places):
        ring.feed(piece)
    lines = whole.lines(0, whole.end)
    assert (ring.first, ring.end) == (max(0, len(lines) - capacity), len(lines))
    expected = {n: line for n, line in enumerate(lines) if max(start, ring.first) <= n < stop}
    assert ring.lines(start, stop) == list(expected.values())
    assert {line.number: line.text for line in ring.read(start, stop)} == expected


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 15)).map(lambda it: (it[0], sum(it))), max_size=12)


@given(st.data())
def test_parts_of_a_run_are_joined_so_that_every_byte_is_there_once(data: st.DataObject) -> None:
    """Calls begin and end at moments of one worker, at which neither of its files is shorter than before."""
    steps = data.draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
    moments = list(accumulate(steps, lambda at, step: (at[0] + step[0], at[1] + step[1]), initial=(0, 0)))
    moment = st.integers(0, len(moments) - 1)
    calls = data.draw(st.lists(st.tuples(st.sampled_from(["r000", "r000.1"]), moment, moment), max_size=12))
    parts = [LogRange(stem, moments[min(ends)], moments[max(ends)]) for stem, *ends in calls]
    out = merge_ranges(parts)
    for stem, stream in product(("r000", "r000.1"), (0, 1)):
        held = [n for part in out if part.stem == stem for n in range(part.start[stream], part.end[stream])]
        told = {n for part in parts if part.stem == stem for n in range(part.start[stream], part.end[stream])}
        assert held == sorted(told)


@given(st.binary(min_size=1, max_size=80), SPANS, SPANS)
def test_two_clients_that_write_the_same_log_leave_it_whole(
    data: bytes, first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    with tempfile.TemporaryDirectory() as home, patch.dict(os.environ, {"SKYWARD_HOME": home}):
        clients = PoolFolder("p.t1"), PoolFolder("p.t1")
        for client, spans in zip(clients, (first, second), strict=True):
            for start, stop in [*spans, (0, len(data))]:
                if piece := data[start:stop]:
                    client.write_log("r000.out", start, piece)
        assert (clients[0].logs / "r000.out").read_bytes() == data
        assert clients[0].log_sizes() == clients[1].log_sizes() == {"r000.out": len(data)}
        for client in clients:
            client.close()


# -- shards ----------------------------------------------------------------------------------------------


@given(st.integers(0, 200), st.integers(1, 40), st.booleans(), st.integers())
def test_every_item_is_in_one_shard_and_sizes_differ_by_at_most_one(
    length: int, world: int, shuffle: bool, seed: int
) -> None:
    parts, others = [], []
    for rank in range(world):
        with using(InstanceInfo(rank=rank, world_size=world)):
            part, other = shard(list(range(length)), range(1000, 1000 + length), shuffle=shuffle, seed=seed)
        parts.append(part)
        others.append([value - 1000 for value in other])
    assert sorted(item for part in parts for item in part) == list(range(length))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert parts == others


# -- arguments -------------------------------------------------------------------------------------------

PLAIN = (
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(CHARACTERS) | st.binary()
)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (int, st.integers()),
        (float, st.floats(allow_nan=False)),
        (bool, st.booleans()),
        (bytes, st.binary()),
        (list[int], st.lists(st.integers())),
        (list[str], st.lists(st.text(CHARACTERS))),
        (tuple[int, ...], st.lists(st.integers()).map(tuple)),
        (
            dict[str, float],
            st.dictionaries(st.text(CHARACTERS), st.floats(allow_nan=False, allow_infinity=False)),
        ),
        (Any, st.lists(PLAIN, min_size=1)),
    ],
    ids=str,
)
def test_what_is_written_as_in_source_is_read_as_it_was(kind: Any, values: st.SearchStrategy[Any]) -> None:
    @given(values)
    def check_it(value: Any) -> None:
        assert convert(repr(value), kind) == value

    check_it()
