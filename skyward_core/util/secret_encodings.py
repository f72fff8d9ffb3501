"""The forms in which a secret's value is printed without being meant to: as a literal, in a URL, in base64."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

# Of a value that begins at the first, second or third byte of a group of three: the first character of base64 that
# is made of its own bits alone.
_BASE64_OFFSETS = (0, 2, 3)


def encoded_forms(value: str) -> set[bytes]:
    """A value itself; as a literal of Python and JSON; percent-encoded; in base64, wherever in a longer text it stood
    there (``user:value`` of an Authorization header, say)."""
    texts = {value, repr(value)[1:-1], json.dumps(value)[1:-1]}
    data = value.encode("utf-8", "surrogateescape")
    for quoted in (quote(data, safe=""), quote(data), quote_plus(data)):
        texts |= {quoted, _lower_hex(quoted)}
    return {text.encode("utf-8", "surrogateescape") for text in texts} | set(_base64_forms(data))


def _base64_forms(data: bytes) -> Iterator[bytes]:
    for before, first in enumerate(_BASE64_OFFSETS):
        padded = bytes(before) + data
        own = slice(first, len(padded) * 8 // 6)  # what follows shares the next character
        yield base64.b64encode(padded)[own]
        yield base64.urlsafe_b64encode(padded)[own]


def _lower_hex(quoted: str) -> str:
    first, *rest = quoted.split("%")
    return "%".join([first, *(part[:2].lower() + part[2:] for part in rest)])
