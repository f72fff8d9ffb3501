"""Secrets are blanked, by value, in what leaves a node for eyes: logs, summaries, errors.

Every byte of one becomes an asterisk: lengths stay, and with them the cursors of logs and the frames of pickles.
A value is known in the forms that :func:`encoded_forms` makes of it, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

MIN_SECRET_LENGTH = 8  # characters; shorter values are too common in other words to be blanked
MIN_PREFIX_LENGTH = 12  # bytes of a secret's beginning that are blanked also where the rest was cut off
MIN_DISTINCT_CHARACTERS = 4  # different characters; a value of fewer is a ruler or a placeholder

_SECRET_NAMES = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSW|PASSPHRASE|CREDENTIAL"
    r"|(?:API|ACCESS|ACCOUNT|PRIVATE|ENCRYPTION|SIGNING|MASTER|LICENSE|DEPLOY|AUTH|STORAGE)_?KEY"
    r"|(?:^|_)(?:PAT|PASS|CREDS|PWD|AUTH|CONNECTION_STRING|AUTH_CONFIG)$",
    re.IGNORECASE,
)
# These tell where a secret is, of what kind, how many there may be, or which folder one works in.
_NOT_SECRET_NAMES = re.compile(
    r"_(?:FILE|PATH|DIR|HOME|URL|URI|ENDPOINT|HOST|PORT|NAME|USER|TYPE|KIND|BACKEND|PROVIDER|PROFILE|REGION|TTL|"
    r"TIMEOUT|EXPIRY|EXPIRES|LIMIT|COUNT|SOCK)$|^(?:MAX|MIN|NUM)_|^PWD$",
    re.IGNORECASE,
)
_COMMON_WORDS = frozenset(
    ["disabled", "required", "optional", "password", "passw0rd", "changeme", "undefined", "localhost", "production",
     "development", "anonymous", "username", "postgres", "keyring", "interactive"]
)  # fmt: skip

# No scheme is that long, and a text that is one long word is looked at once, not from each of its letters to its end.
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,63})://(?P<user>[^\s/?#:'\"<>]*)(?P<rest>:[^\s/?#'\"<>]*)?@")


def secret_values(env: Mapping[str, str]) -> list[str]:
    """The values of environment variables whose names say that they are secret, and passwords of URLs in others.

    Paths and words that stand in any log are none, whatever their variable is called: lines would only be damaged.
    """
    named = [value for name, value in env.items() if is_secret_name(name) and not _is_common_value(value)]
    return [*named, *url_secrets(list(env.values()))]


def is_secret_name(name: str) -> bool:
    """Whether an environment variable's name says that its value is secret."""
    return bool(_SECRET_NAMES.search(name)) and not _NOT_SECRET_NAMES.search(name)


def _is_common_value(value: str) -> bool:
    if value.startswith(("~/", "./", "../", "file:")):
        return True
    if value.startswith("/"):  # so does every 64th key in base64, but no folder has its name
        return Path("/", value.split("/")[1]).is_dir()
    return value.lower() in _COMMON_WORDS or len(set(value)) < MIN_DISTINCT_CHARACTERS


def url_secrets(value: Any) -> list[str]:
    """Passwords, and tokens in their place, of all URLs in a value of JSON's types; as written and as meant."""
    found = []
    for text in _iter_strings(value):
        for match in _URL.finditer(text):
            from urllib.parse import unquote

            secret = (match["rest"] or "")[1:] or ("" if _is_plain_user(match) else match["user"])
            found += [secret, unquote(secret)]
    return list(dict.fromkeys(filter(None, found)))


def strip_credentials(text: str) -> str:
    """A text with passwords, and tokens in their place, taken out of the URLs in it."""

    def shortened(match: re.Match[str]) -> str:
        return f"{match['scheme']}://" + (f"{match['user']}@" if _is_plain_user(match) else "")

    return _URL.sub(shortened, text)


def make_sanitizer(env: Mapping[str, str]) -> Callable[[str], str]:
    """What makes a text one that may be written down: without credentials in its URLs, and, where there is a URL in it,
    with the values of secret variables blanked, wherever in the URL they stand.

    Args:
        env: the variables.
    """
    redactor = Redactor(secret_values(env))

    def kept(text: str) -> str:
        return redactor.redact_text(strip_credentials(text)) if "://" in text else text

    return kept


def _is_plain_user(match: re.Match[str]) -> bool:
    """Whether what stands before the host is no secret: over ssh, say, a user's name; over http a token may."""
    return not match["scheme"].lower().endswith(("http", "https"))


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """A value of JSON's types with every string in it, keys too, changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): map_strings(part, change) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [map_strings(part, change) for part in value]
    return value


def _iter_strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _iter_strings(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _iter_strings(part)


class Redactor:
    """Knows the secrets; false while there are none.

    Attributes:
        reach: bytes of the longest secret, less one: so far may one stand over the end of a piece of log.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values: list[bytes] = []
        self._starts: set[bytes] = set()  # beginnings that are too short to be looked for
        self._prefilter: SecretPrefilter | None = None
        self.reach = 0
        self.add(values)

    def __bool__(self) -> bool:
        return bool(self._values)

    def add(self, values: Iterable[str]) -> None:
        """Blank these as well, from now on; those shorter than ``SHORTEST`` are left out."""
        long = [value for value in values if len(value) >= MIN_SECRET_LENGTH]
        if not long:
            return
        new = {form for value in long for form in encoded_forms(value)} - set(self._values)
        if not new:
            return
        self._values += sorted(new)
        self._starts |= {form[:length] for form in new for length in range(1, min(len(form), MIN_PREFIX_LENGTH))}
        self._prefilter = None
        self.reach = max(len(value) - 1 for value in self._values)

    def redact_bytes(self, data: bytes) -> bytes:
        """The same bytes, as many, with secrets blanked, also those that break off after ``TELLING`` bytes."""
        if not self._may_contain(data):
            return data
        blanked: bytearray | None = None
        for value in self._values:
            at = data.find(value[:MIN_PREFIX_LENGTH])
            while at >= 0:
                end = at + MIN_PREFIX_LENGTH
                while end - at < len(value) and data[end : end + 1] == value[end - at : end - at + 1]:
                    end += 1
                end = min(end, at + len(value))
                blanked = blanked or bytearray(data)
                blanked[at:end] = b"*" * (end - at)
                at = data.find(value[:MIN_PREFIX_LENGTH], end)
        return data if blanked is None else bytes(blanked)

    def redact_text(self, text: str) -> str:
        """See :meth:`data`."""
        return self.redact_bytes(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def redact_json(self, value: Any) -> Any:
        """A value of JSON's types with every string in it, keys too, as :meth:`text` makes it."""
        return map_strings(value, self.redact_text)

    def partial_secret_length(self, data: bytes) -> int:
        """How many of the last bytes may be the beginning of a secret of which the rest is still to come."""
        last = data[-self.reach :] if self.reach else b""
        longest = (
            max((_overlap_length(last, value) for value in self._values), default=0) if self._may_contain(last) else 0
        )
        short = next((n for n in range(min(MIN_PREFIX_LENGTH - 1, len(data)), 0, -1) if data[-n:] in self._starts), 0)
        return max(longest, short)

    def _may_contain(self, data: bytes) -> bool:
        if self._prefilter is None and self._values:
            self._prefilter = SecretPrefilter([value[:MIN_PREFIX_LENGTH] for value in self._values])
        return self._prefilter is not None and self._prefilter.may_contain(data)


def _overlap_length(data: bytes, value: bytes) -> int:
    """How many of the last bytes are a beginning of a value: ``TELLING`` or more of them, and not the whole; or 0."""
    at = data.find(value[:MIN_PREFIX_LENGTH])
    while at >= 0:
        if len(data) - at < len(value) and value.startswith(data[at:]):
            return len(data) - at
        at = data.find(value[:MIN_PREFIX_LENGTH], at + 1)
    return 0


class SecretPrefilter:
    """Tells at once, of nearly all data, that none of many words is in it; looks at it once for all of them.

    Bytes are taken in pairs, so that a regular expression's set of characters is one of 65,536 pairs: a word has
    a row of pairs in it, wherever it begins.
    """

    # Bytes that are no ASCII count as one, as pairs of some of them would be read as a single character.
    _ASCII = bytes(min(byte, 127) for byte in range(256))

    def __init__(self, words: Iterable[bytes]) -> None:
        plain = [word.translate(self._ASCII) for word in words]
        pairs = {word[at : at + 2].decode("utf-16-le") for word in plain for at in range(len(word) - 1)}
        row = (min(map(len, plain)) - 1) // 2
        self._search = re.compile(f"[{''.join(map(re.escape, sorted(pairs)))}]" * row).search

    def may_contain(self, data: bytes) -> bool:
        """False where no word is in the data; nearly always only there."""
        even = len(data) & ~1
        return self._search(data[:even].translate(self._ASCII).decode("utf-16-le")) is not None


# Of a value that begins at the first, second or third byte of a group of three: the first character of base64 that
# is made of its own bits alone.
_BASE64_OFFSETS = (0, 2, 3)


def encoded_forms(value: str) -> set[bytes]:
    """A value itself; as a literal of Python and JSON; percent-encoded; in base64, wherever in a longer text it stood
    there (``user:value`` of an Authorization header, say)."""
    import json
    from urllib.parse import quote, quote_plus

    texts = {value, repr(value)[1:-1], json.dumps(value)[1:-1]}
    data = value.encode("utf-8", "surrogateescape")
    for quoted in (quote(data, safe=""), quote(data), quote_plus(data)):
        texts |= {quoted, _lower_hex(quoted)}
    return {text.encode("utf-8", "surrogateescape") for text in texts} | set(_base64_forms(data))


def _base64_forms(data: bytes) -> Iterator[bytes]:
    import base64

    for before, first in enumerate(_BASE64_OFFSETS):
        padded = bytes(before) + data
        own = slice(first, len(padded) * 8 // 6)  # what follows shares the next character
        yield base64.b64encode(padded)[own]
        yield base64.urlsafe_b64encode(padded)[own]


def _lower_hex(quoted: str) -> str:
    first, *rest = quoted.split("%")
    return "%".join([first, *(part[:2].lower() + part[2:] for part in rest)])
