"""Frames, however the bytes of a stream happen to be cut."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from typing import Any

import pytest

from skyward_core.protocol.frame_codec import CHUNK_BYTES, MAX_INLINE_BYTES, Decoder, WireError, encode_frame

FRAMES: list[tuple[dict[str, Any], bytes]] = [
    ({"t": "hello"}, b""),
    ({"t": "log", "f": "r000.out", "at": 7}, b"some\nlines\n"),
    ({"t": "call", "run": "x", "i": 0, "args": ["ab", 3]}, bytes(range(256)) * 3),
    ({"t": "outcome", "summary": {"json": {"a": None, "b": [True, 1.5]}}}, b"\0"),
    ({"t": "words", "text": "grüße 🚀 \u2028 \x00"}, b""),
]
STREAM = b"".join(encode_frame(header, body) for header, body in FRAMES)


def decode(*chunks: bytes) -> list[tuple[dict, bytes]]:
    decoder = Decoder()
    return [found for chunk in chunks for found in decoder.feed(chunk)]


def test_frames_arrive_cut_at_any_place() -> None:
    for cut in range(len(STREAM) + 1):
        assert decode(STREAM[:cut], STREAM[cut:]) == FRAMES


def test_frames_arrive_byte_by_byte() -> None:
    assert decode(*(STREAM[i : i + 1] for i in range(len(STREAM)))) == FRAMES


def test_many_frames_in_one_chunk_and_random_cuts() -> None:
    chance = random.Random(7)
    data = STREAM * 500
    chunks = []
    while data:
        size = chance.choice((1, 2, 7, 8, 9, 100, 1000, 100_000))
        chunks.append(data[:size])
        data = data[size:]
    assert decode(*chunks) == FRAMES * 500
    assert decode(STREAM * 500) == FRAMES * 500


def test_a_frame_is_yielded_as_soon_as_it_is_whole() -> None:
    decoder = Decoder()
    whole = encode_frame({"t": "a"}, b"body")
    assert list(decoder.feed(whole[:-1])) == []
    assert list(decoder.feed(whole[-1:] + whole[:3])) == [({"t": "a"}, b"body")]
    assert list(decoder.feed(whole[3:])) == [({"t": "a"}, b"body")]


def test_large_bodies_cost_about_their_size() -> None:
    body = random.Random(1).randbytes(8 * CHUNK_BYTES)
    data = encode_frame({"t": "data"}, body)
    pieces = [data[i : i + MAX_INLINE_BYTES] for i in range(0, len(data), MAX_INLINE_BYTES)]
    tracemalloc.start()
    try:
        assert decode(*pieces)[0][1] == body
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(body)


def test_what_was_read_is_not_read_again_after_the_reader_stops_half_way() -> None:
    decoder = Decoder()
    for header, _ in decoder.feed(STREAM):
        if header["t"] == "log":
            break
    assert [header["t"] for header, _ in decoder.feed(b"")] == ["call", "outcome", "words"]


def test_text_that_is_no_unicode_survives() -> None:
    name = b"caf\xe9.py".decode("utf-8", "surrogateescape")
    assert decode(encode_frame({"t": "x", "name": name})) == [({"t": "x", "name": name}, b"")]


def lengths(head: bytes, body: bytes = b"") -> bytes:
    return struct.pack("!II", len(head), len(body)) + head + body


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x80\x04\x95" + b"\xff" * 20,
        lengths(b"{"),
        lengths(b"not json"),
        lengths(b"\xff\xfe{}"),
        lengths(b""),
        lengths(b"[1, 2]"),
        lengths(b"null"),
        lengths(b'"t"'),
        lengths(b'{"kind": "no t"}'),
        lengths(b"[" * 100_000),
    ],
)
def test_garbage_is_a_wire_error(garbage: bytes) -> None:
    with pytest.raises(WireError):
        decode(garbage)
    with pytest.raises(WireError):
        decode(STREAM + garbage)


def test_frames_before_the_garbage_are_still_given() -> None:
    decoder, seen = Decoder(), []
    with pytest.raises(WireError):
        for found in decoder.feed(STREAM + lengths(b"nonsense")):
            seen.append(found)
    assert seen == FRAMES


def test_a_header_is_compact_json() -> None:
    data = encode_frame({"t": "a", "b": [1, 2]})
    assert json.loads(data[8:]) == {"t": "a", "b": [1, 2]}
    assert b" " not in data[8:]
