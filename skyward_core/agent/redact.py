"""Secrets are blanked, by value, in what leaves a node for eyes: logs, summaries, errors.

Every byte of one becomes an asterisk: lengths stay, and with them the cursors of logs and the frames of pickles.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

SHORTEST = 8  # characters; shorter values are too common in other words to be blanked
TELLING = 12  # bytes of a secret's beginning that are blanked also where the rest was cut off

_NAMES = re.compile(r"TOKEN(?!IZ)|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_KEY|PRIVATE_KEY", re.IGNORECASE)


_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<user>[^\s/?#:'\"<>]*)(?P<rest>:[^\s/?#'\"<>]*)?@"
)


def secret_values(env: Mapping[str, str]) -> list[str]:
    """The values of environment variables whose names say that they are secret, and passwords of URLs in others."""
    named = [value for name, value in env.items() if _NAMES.search(name)]
    return [*named, *url_secrets(list(env.values()))]


def url_secrets(value: Any) -> list[str]:
    """Passwords, and tokens in their place, of all URLs in a value of JSON's types; as written and as meant."""
    from urllib.parse import unquote

    found = []
    for text in _texts(value):
        for match in _URL.finditer(text):
            secret = (match["rest"] or "")[1:] or ("" if _is_only_user(match) else match["user"])
            found += [secret, unquote(secret)]
    return list(dict.fromkeys(filter(None, found)))


def without_credentials(text: str) -> str:
    """A text with passwords, and tokens in their place, taken out of the URLs in it."""

    def shortened(match: re.Match[str]) -> str:
        return f"{match['scheme']}://" + (f"{match['user']}@" if _is_only_user(match) else "")

    return _URL.sub(shortened, text)


def _is_only_user(match: re.Match[str]) -> bool:
    """Whether what stands before the host is no secret: over ssh, say, a user's name; over http a token may."""
    return not match["scheme"].lower().endswith(("http", "https"))


def each_text(value: Any, change: Callable[[str], str]) -> Any:
    """A value of JSON's types with every string in it, keys too, changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): each_text(part, change) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [each_text(part, change) for part in value]
    return value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


class Redactor:
    """Knows the secrets; false while there are none.

    Attributes:
        reach: bytes of the longest secret, less one: so far may one stand over the end of a piece of log.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values: list[bytes] = []
        self.reach = 0
        self.add(values)

    def __bool__(self) -> bool:
        return bool(self._values)

    def add(self, values: Iterable[str]) -> None:
        """Blank these as well, from now on; those shorter than ``SHORTEST`` are left out."""
        long = [value for value in values if len(value) >= SHORTEST]
        # A value with quotes, backslashes or line ends in it looks different where it is shown as a literal.
        forms = {form for value in long for form in (value, repr(value)[1:-1], json.dumps(value)[1:-1])}
        new = {form.encode() for form in forms} - set(self._values)
        self._values += sorted(new)
        self.reach = max((len(value) - 1 for value in self._values), default=0)

    def data(self, data: bytes) -> bytes:
        """The same bytes, as many, with secrets blanked, also those that break off after ``TELLING`` bytes."""
        blanked: bytearray | None = None
        for value in self._values:
            at = data.find(value[:TELLING])
            while at >= 0:
                end = at + TELLING
                while end - at < len(value) and data[end : end + 1] == value[end - at : end - at + 1]:
                    end += 1
                end = min(end, at + len(value))
                blanked = blanked or bytearray(data)
                blanked[at:end] = b"*" * (end - at)
                at = data.find(value[:TELLING], end)
        return data if blanked is None else bytes(blanked)

    def text(self, text: str) -> str:
        """See :meth:`data`."""
        return self.data(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def json(self, value: Any) -> Any:
        """A value of JSON's types with every string in it, keys too, as :meth:`text` makes it."""
        return each_text(value, self.text)

    def begun(self, data: bytes) -> int:
        """How many of the last bytes may be the beginning of a secret of which the rest is still to come."""
        longest = 0
        for value in self._values:
            for length in range(min(len(value) - 1, len(data)), longest, -1):
                if data.endswith(value[:length]):
                    longest = length
                    break
        return longest
