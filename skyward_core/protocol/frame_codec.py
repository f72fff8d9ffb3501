"""The frames that client, agent and worker speak. Standard library only.

A frame is two lengths (header, body; unsigned 32 bits, network order), a JSON object, and raw bytes. The header
says what it is under "t"; the body is opaque (a pickle, a piece of a file) and is never looked into on the way.
"""

from __future__ import annotations

import json
import json.encoder
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

VERSION = 9  # another one where client and agent of before and after would not understand each other
CHUNK_BYTES = 1 << 20  # bytes of a large thing in one frame, so that small frames never wait long behind it
MAX_INLINE_BYTES = 64 * 1024  # larger payloads and results travel as files
MAX_SHORT_TEXT = 1024  # characters of a text that is worth no second look
MAX_INTEGER = 1 << 53  # of any number but a few: what JSON has in common with everybody
MAX_EXCEPTION_BYTES = 16 << 20  # bytes of a pickled exception, which travels in its frame; of a larger one a stand-in
MAX_PLUGINS_BYTES = 64 << 20  # bytes of a pool's pickled plugins
# Ends the pickle of a function, behind a pickle of the client's command line: its length, and a sign. It comes last
# because workers of older releases read only what is before it.
COMMAND_LINE_TRAILER = struct.Struct("!I4s")
COMMAND_LINE_MARKER = b"argv"

WINDOW = 16  # values that a generator may be ahead of its reader
# Outcomes that are somebody's work; the others tell of what did not come about.
RESULT_KINDS = ("returned", "raised", "exited")
PICKLED_NONE = b"\x80\x04N."  # None, pickled, and how it looks
NONE_SUMMARY: Any = {
    "type": "NoneType",
    "text": "None",
    "json": None,
    "is_json": True,
    "size": len(PICKLED_NONE),
}

Header = dict[str, Any]
AnyHeader = Any  # a header that has come: who handles its kind says of which type it is; see frame_types

_LENGTHS = struct.Struct("!II")
_HEADER_LIMIT = 64 << 20
_decode = json.JSONDecoder().raw_decode


def is_plain(value: Any) -> bool:
    """Whether a value is short, and any pickler writes it alike; cloudpickle takes longer to begin than pickle does."""
    kind = type(value)
    if kind is str or kind is bytes:
        return len(value) <= MAX_SHORT_TEXT
    return kind is bool or kind is float or value is None or (kind is int and -MAX_INTEGER < value < MAX_INTEGER)


class WireError(Exception):
    """The other side does not speak this protocol."""


def make_json_encoder(*, only_ascii: bool) -> Callable[[Any], str]:
    """What writes JSON as compactly and as quickly as can be.

    What json does beyond that (a search for circles, for space around) takes as long as a small object, and so does
    making anew, for every object, the part of it that is written in C.
    """
    general = json.JSONEncoder(separators=(",", ":"), ensure_ascii=only_ascii, check_circular=False)
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # an interpreter that has no such part
        return general.encode
    text = json.encoder.encode_basestring_ascii if only_ascii else json.encoder.encode_basestring
    pieces = make(None, general.default, text, None, ":", ",", False, False, True)
    return lambda thing: "".join(pieces(thing, 0))


encode_json = make_json_encoder(only_ascii=False)  # a header as JSON


def encode_frame(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    """One frame as bytes."""
    head = encode_json(header).encode("utf-8", "surrogatepass")
    return b"".join((_LENGTHS.pack(len(head), len(body)), head, body))


def encode_frame_text(text: str, body: bytes = b"") -> bytes:
    """One frame of a header that is encoded already."""
    head = text.encode("utf-8", "surrogatepass")
    return b"".join((_LENGTHS.pack(len(head), len(body)), head, body))


def decode_lengths(data: bytes) -> tuple[int, int]:
    """Of a frame's header and of its body, from its first eight bytes."""
    head, body = _LENGTHS.unpack(data)
    return head, body


def decode_header(head: bytes | bytearray) -> AnyHeader:
    """A frame's header.

    Raises:
        WireError: it is none.
    """
    try:
        text = head.decode("utf-8", "surrogatepass")
        header, end = _decode(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"a header does not parse: {error}") from error
    if end != len(text):
        raise WireError("a header does not parse: something follows it")
    if type(header) is not dict or type(header.get("t")) is not str:
        raise WireError("a header does not say what it is")
    return header


class Decoder:
    """Turns a stream of bytes back into frames.

    Args:
        admit: looks at each header, and at the lengths of header and body, before the body is taken in; raises
            ``WireError`` for what must not be. See ``protocol.frame_schema``.
        most: bytes of a header above which it is not taken in.
    """

    __slots__ = ("_admit", "_buffer", "_most", "_pending")

    def __init__(self, admit: Callable[[Header, int, int], None] | None = None, most: int = _HEADER_LIMIT) -> None:
        self._admit = admit
        self._most = most
        self._buffer = bytearray()
        self._pending: tuple[Header, int] | None = None  # a header, and the length of the body that is to come

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[AnyHeader, bytes]]:
        """Take bytes as they come; yield the frames they complete.

        Raises:
            WireError: the bytes are no frame.
        """
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while True:
                if self._pending is None:
                    if len(buffer) - start < 8:
                        break
                    head, body = _LENGTHS.unpack_from(buffer, start)
                    if head > self._most:
                        raise WireError(f"a header of {head} bytes is not of this protocol")
                    middle = start + 8 + head
                    if len(buffer) < middle:
                        break
                    header = decode_header(buffer[start + 8 : middle])
                    if self._admit is not None:
                        self._admit(header, head, body)
                    start = middle
                else:
                    header, body = self._pending
                    self._pending = None
                stop = start + body
                if len(buffer) < stop:
                    self._pending = header, body
                    break
                payload = bytes(memoryview(buffer)[start:stop])
                start = stop
                yield header, payload
        finally:
            if start:
                del buffer[:start]
