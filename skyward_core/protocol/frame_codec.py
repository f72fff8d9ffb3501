"""Encoding and decoding of the frames between client, agent and worker. Uses only the standard library.

A frame consists of the lengths of header and body (unsigned 32 bits each, network order), the header (a JSON object),
and the body (raw bytes). Key "t" of the header is the kind of the frame. The body is opaque, for example a pickle or a
part of a file.
"""

from __future__ import annotations

import json
import json.encoder
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

VERSION = 9  # version of the protocol; incremented when a release can no longer communicate with earlier releases
CHUNK_BYTES = 1 << 20  # bytes of a chunk of large data; each chunk is a frame, so that small frames never wait long
MAX_INLINE_BYTES = 64 * 1024  # maximum bytes of a payload or result inside a frame; larger ones are sent as files
# In a preemption notice, a node number up to this value means that only the ranks of a cancelled run get the notice.
CANCELLED_NODE = -1
MAX_SHORT_TEXT = 1024  # maximum characters of a shortened message, and bytes of a short header or value
MAX_INTEGER = 1 << 53  # bound of almost all numbers in frames, because larger integers are not portable in JSON
MAX_EXCEPTION_BYTES = 16 << 20  # maximum bytes of a pickled exception; a larger one is replaced by a stand-in
MAX_PLUGINS_BYTES = 64 << 20  # maximum bytes of a pool's pickled plugins
# Trailer of a function's pickle: length of the preceding pickle with the client's command line, and a marker. The
# command line and the trailer come last, because workers of older releases read only the part before them.
COMMAND_LINE_TRAILER = struct.Struct("!I4s")
COMMAND_LINE_MARKER = b"argv"

WINDOW = 16  # maximum number of values that a generator may yield before its reader has acknowledged them
# Kinds of outcomes with a result. All other kinds mean that the call did not complete.
RESULT_KINDS = ("returned", "raised", "exited")
PICKLED_NONE = b"\x80\x04N."  # pickle of None; NONE_SUMMARY is its summary
NONE_SUMMARY: Any = {
    "type": "NoneType",
    "text": "None",
    "json": None,
    "is_json": True,
    "size": len(PICKLED_NONE),
}

Header = dict[str, Any]
AnyHeader = Any  # type of a received header; the handler of each kind of frame declares a type from frame_types

_LENGTHS = struct.Struct("!II")
_HEADER_LIMIT = 64 << 20
_decode: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def is_plain(value: Any) -> bool:
    """Check whether a value is a short text or bytes, a number, a bool or None: all picklers pickle it equally.

    Such values are pickled by pickle, because cloudpickle takes longer to start.
    """
    kind = type(value)
    if kind is str or kind is bytes:
        return len(value) <= MAX_SHORT_TEXT
    return kind is bool or kind is float or value is None or (kind is int and -MAX_INTEGER < value < MAX_INTEGER)


class WireError(Exception):
    """Error: the peer violates the protocol."""


def make_json_encoder(*, only_ascii: bool) -> Callable[[Any], str]:
    """Return a fast encoder for compact JSON.

    The json module's checks for cycles and its whitespace handling take as long as encoding a small object. The
    returned encoder creates the module's C encoder only once instead of once per object.
    """
    general = json.JSONEncoder(separators=(",", ":"), ensure_ascii=only_ascii, check_circular=False)
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # Only CPython's json module has the C encoder.
        return general.encode
    text = json.encoder.encode_basestring_ascii if only_ascii else json.encoder.encode_basestring
    pieces = make(None, general.default, text, None, ":", ",", False, False, True)
    return lambda thing: "".join(pieces(thing, 0))


encode_json = make_json_encoder(only_ascii=False)  # encodes a frame's header as JSON
encode_record = make_json_encoder(only_ascii=True)  # encodes a line of a journal, or a column of the ledger, as JSON


def encode_frame(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Return a frame as bytes, from its header and its body."""
    return encode_frame_text(encode_json(header), body)


def encode_frame_text(text: str, body: bytes = b"", before: bytes = b"") -> bytes:
    """Return a frame as bytes, from its encoded header and its body. It follows the bytes ``before``."""
    head = text.encode("utf-8", "surrogatepass")
    return b"".join((before, _LENGTHS.pack(len(head), len(body)), head, body))


def decode_lengths(data: bytes) -> tuple[int, int]:
    """Return the lengths of header and body from the first eight bytes of a frame."""
    head, body = _LENGTHS.unpack(data)
    return head, body


def decode_header(head: bytes | bytearray) -> AnyHeader:
    """Decode the JSON header of a frame.

    Raises:
        WireError: If the header is invalid.
    """
    try:
        text = head.decode("utf-8", "surrogatepass")
        header, end = _decode(text, 0)
    except (ValueError, RecursionError, StopIteration) as error:
        raise WireError(f"invalid frame header: {error}") from error
    if end != len(text):
        raise WireError("invalid frame header: extra data after the JSON object")
    if type(header) is not dict or type(header.get("t")) is not str:
        raise WireError("invalid frame header: key 't' is missing")
    return header


class Decoder:
    """Decoder that converts a stream of bytes into frames.

    Args:
        admit: Validates each header and the lengths of header and body before the body is read. Raises ``WireError``
            for invalid frames. See ``protocol.frame_schemas_and_size_limits``.
        most: Maximum bytes of a header.
    """

    __slots__ = ("_admit", "_buffer", "_most", "_pending")

    def __init__(self, admit: Callable[[Header, int, int], None] | None = None, most: int = _HEADER_LIMIT) -> None:
        self._admit = admit
        self._most = most
        self._buffer = bytearray()
        # received header whose body has not arrived completely, and the length of this body in bytes
        self._pending: tuple[Header, int] | None = None

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[AnyHeader, bytes]]:
        """Add bytes of the stream. Yield the frames that are complete.

        Raises:
            WireError: If the bytes are not a valid frame.
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
                        raise WireError(f"frame header of {head} bytes is too long")
                    middle = start + 8 + head
                    if len(buffer) < middle:
                        break
                    header = decode_header(buffer[start + 8 : middle])
                    if self._admit is not None:
                        self._admit(header, head, body)
                    start, self._pending = middle, (header, body)
                header, body = self._pending
                stop = start + body
                if len(buffer) < stop:
                    break
                self._pending = None
                payload = bytes(memoryview(buffer)[start:stop])
                start = stop
                yield header, payload
        finally:
            if start:
                del buffer[:start]
