"""Redaction of secrets in data for display: logs, summaries and errors.

Every byte of a secret is replaced by an asterisk. Lengths do not change, so byte offsets into logs, and frame lengths
inside pickles, stay valid. Secrets are also found in the encodings of :func:`encoded_forms`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

MIN_SECRET_LENGTH = 8  # minimum characters of a secret; shorter values also match ordinary text
MIN_PREFIX_LENGTH = 12  # minimum bytes of a cut-off secret's beginning for this beginning to be redacted
# minimum number of different characters of a secret; other values are separator lines or placeholders
MIN_DISTINCT_CHARACTERS = 4

# These patterns are compiled when they are first used, because most processes never use them.
_SECRET_NAMES = (
    r"(?i)TOKEN(?!IZ)|SECRET|PASSW|PASSPHRASE|CREDENTIAL"
    r"|(?:API|ACCESS|ACCOUNT|PRIVATE|ENCRYPTION|SIGNING|MASTER|LICENSE|DEPLOY|AUTH|STORAGE)_?KEY"
    r"|(?:^|_)(?:PAT|PASS|CREDS|PWD|AUTH|CONNECTION_STRING|AUTH_CONFIG)$"
)
# Names of variables that match names of secrets, but hold the location, type or number of a secret, or a folder.
_NOT_SECRET_NAMES = (
    r"(?i)_(?:FILE|PATH|DIR|HOME|URL|URI|ENDPOINT|HOST|PORT|NAME|USER|TYPE|KIND|BACKEND|PROVIDER|PROFILE|REGION|TTL|"
    r"TIMEOUT|EXPIRY|EXPIRES|LIMIT|COUNT|SOCK)$|^(?:MAX|MIN|NUM)_|^PWD$"
)
_COMMON_WORDS = frozenset(
    ["disabled", "required", "optional", "password", "passw0rd", "changeme", "undefined", "localhost", "production",
     "development", "anonymous", "username", "postgres", "keyring", "interactive"]
)  # fmt: skip

# The scheme's length is limited, because the search would otherwise take quadratic time in long texts without spaces.
_URL = r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,63})://(?P<user>[^\s/?#:'\"<>]*)(?P<rest>:[^\s/?#'\"<>]*)?@"


def secret_values(env: Mapping[str, str]) -> list[str]:
    """Return the values of environment variables with secret names, and passwords in URLs of other variables.

    Paths and common words are not secrets, even with a secret name, because redacting them would only damage logs.
    """
    named = [value for name, value in env.items() if is_secret_name(name) and not _is_common_value(value)]
    return [*named, *url_secrets(list(env.values()))]


def is_secret_name(name: str) -> bool:
    """Check whether an environment variable's name indicates a secret value."""
    return bool(re.search(_SECRET_NAMES, name)) and not re.search(_NOT_SECRET_NAMES, name)


def _is_common_value(value: str) -> bool:
    if value.startswith(("~/", "./", "../", "file:")):
        return True
    if value.startswith("/"):
        # Check that the path's first folder exists, because one in 64 keys in base64 starts with a slash, too.
        return Path("/", value.split("/")[1]).is_dir()
    return value.lower() in _COMMON_WORDS or len(set(value)) < MIN_DISTINCT_CHARACTERS


def url_secrets(value: Any) -> list[str]:
    """Return the passwords of all URLs in a JSON value, and tokens used as user names, raw and percent-decoded."""
    found = []
    for text in _iter_strings(value):
        for match in re.finditer(_URL, text):
            from urllib.parse import unquote

            secret = (match["rest"] or "")[1:] or ("" if _is_plain_user(match) else match["user"])
            found += [secret, unquote(secret)]
    return list(dict.fromkeys(filter(None, found)))


def strip_credentials(text: str) -> str:
    """Return a text without the passwords in its URLs, and without tokens used as user names."""

    def shortened(match: re.Match[str]) -> str:
        return f"{match['scheme']}://" + (f"{match['user']}@" if _is_plain_user(match) else "")

    return re.sub(_URL, shortened, text)


def make_sanitizer(env: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that prepares texts for storage.

    The function removes credentials from URLs, and redacts the values of secret variables in texts with URLs.

    Args:
        env: The environment variables.
    """
    redactor = Redactor(secret_values(env))

    return lambda text: redactor.redact_text(strip_credentials(text)) if "://" in text else text


def _is_plain_user(match: re.Match[str]) -> bool:
    """Check whether the user part of a URL is not secret. With http it may be a token; with ssh it is a user name."""
    return not match["scheme"].lower().endswith(("http", "https"))


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with a function applied to every string, including keys."""
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
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _iter_strings(part)


class Redactor:
    """Redactor that replaces known secrets in data.

    Attributes:
        has_secrets: Whether it knows any secrets.
        reach: Length of the longest secret minus one, in bytes. This much of a secret may continue in the next piece of
            a log.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values: list[bytes] = []
        # beginnings of the secrets, used to find a secret that the end of the data cuts off
        self._starts: set[bytes] = set()
        self._prefilter: SecretPrefilter | None = None
        self.has_secrets = False
        self.reach = 0
        self.add(values)

    def add(self, values: Iterable[str]) -> None:
        """Add secrets to redact. Ignore values shorter than ``MIN_SECRET_LENGTH``."""
        long = [value for value in values if len(value) >= MIN_SECRET_LENGTH]
        if not long:
            return
        new = {form for value in long for form in encoded_forms(value)} - set(self._values)
        if not new:
            return
        self._values += sorted(new)
        self._starts |= {form[:length] for form in new for length in range(1, min(len(form), MIN_PREFIX_LENGTH))}
        self._prefilter = None
        self.has_secrets = True
        self.reach = max(len(value) - 1 for value in self._values)

    def redact_bytes(self, data: bytes) -> bytes:
        """Return data of the same length, with secrets replaced by asterisks.

        The beginning of a cut-off secret is also redacted if it has at least ``MIN_PREFIX_LENGTH`` bytes.
        """
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
        """Return a text with secrets redacted; see :meth:`redact_bytes`."""
        return self.redact_bytes(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def redact_json(self, value: Any) -> Any:
        """Return a JSON value with secrets redacted in every string, including keys."""
        return map_strings(value, self.redact_text)

    def partial_secret_length(self, data: bytes) -> int:
        """Return how many of the last bytes may be the beginning of a secret that continues in later data."""
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
    """Return how many of the last bytes begin a secret, if at least ``MIN_PREFIX_LENGTH``; otherwise 0."""
    at = data.find(value[:MIN_PREFIX_LENGTH])
    while at >= 0:
        if len(data) - at < len(value) and value.startswith(data[at:]):
            return len(data) - at
        at = data.find(value[:MIN_PREFIX_LENGTH], at + 1)
    return 0


class SecretPrefilter:
    """Fast test whether data may contain any of many secrets, in a single pass over the data.

    Bytes are grouped in pairs, because a regular expression's character set can then contain 65,536 different pairs.
    Data that contains a word also contains a sequence of known pairs, at an even or an odd offset.
    """

    # Map all non-ASCII bytes to one byte, because some pairs of them would decode to one character.
    _ASCII = bytes(min(byte, 127) for byte in range(256))

    def __init__(self, words: Iterable[bytes]) -> None:
        plain = [word.translate(self._ASCII) for word in words]
        pairs = {word[at : at + 2].decode("utf-16-le") for word in plain for at in range(len(word) - 1)}
        row = (min(map(len, plain)) - 1) // 2
        self._search = re.compile(f"[{''.join(map(re.escape, sorted(pairs)))}]" * row).search

    def may_contain(self, data: bytes) -> bool:
        """Return False if the data contains none of the secrets. If True, the data may still contain none."""
        even = len(data) & ~1
        return self._search(data[:even].translate(self._ASCII).decode("utf-16-le")) is not None


# For each position of a value in a group of three bytes (0, 1, 2): index of the first base64 character that depends
# only on the value.
_BASE64_OFFSETS = (0, 2, 3)


def encoded_forms(value: str) -> set[bytes]:
    """Return the texts in which a secret value may appear in other data.

    These are the value itself, Python and JSON literals, the percent-encoded value, and base64 at any offset. Offsets
    matter for encoded texts that contain the value, such as ``user:value`` of an Authorization header.
    """
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
        own = slice(first, len(padded) * 8 // 6)  # Omit the last character if it depends on the data that follows.
        yield base64.b64encode(padded)[own]
        yield base64.urlsafe_b64encode(padded)[own]


def _lower_hex(quoted: str) -> str:
    first, *rest = quoted.split("%")
    return "%".join([first, *(part[:2].lower() + part[2:] for part in rest)])
