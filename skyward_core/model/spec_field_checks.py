"""Checks of the fields of specs: each returns the value to store, or raises a ValueError that describes valid values.

These checks are plain functions and use no validation library: scripts create specs first and must start fast, and
nodes that import a script's modules have only the standard library.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], Any]


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"should be text (got {_type_name(value)})")
    return value


def python_version(value: Any) -> str | None:
    """Check the text of a Python version and return it. "auto" from older API versions becomes None."""
    return None if value == "auto" else text(value)


# Values of the option `console` in older API versions -> present values.
_CONSOLES = {"rich": True, "minimal": True, "log": True, "silent": False}


def console(value: Any) -> bool:
    return flag(_CONSOLES.get(value, value) if isinstance(value, str) else value)


def threads(value: Any) -> int:
    """Check a number of CPU threads and return it. Fractions from older API generations are rounded up."""
    if isinstance(value, float) and 0 < value < 4096:
        return math.ceil(value)
    return integer_between(1, 4096)(value)  # type: ignore[no-any-return]


# Values of the option `executor` in older API versions -> present values.
_EXECUTORS = {"auto": "process", "loky": "process"}


def executor(value: Any) -> str:
    return str(one_of("process", "thread")(_EXECUTORS.get(value, value) if isinstance(value, str) else value))


def path(value: Any) -> str:
    return text(os.fspath(value) if isinstance(value, os.PathLike) else value)


def output_pattern(value: Any) -> str:
    """Check a pattern of output files and return it normalized; see ``model.output_files.normalize_pattern``."""
    # Imported late, because few specs have patterns of output files.
    from skyward_core.model.output_files import normalize_pattern

    return normalize_pattern(value)


def store_url(value: Any) -> str:
    scheme, _, place = text(value).partition("://")
    if not (scheme.isascii() and scheme.isalnum() and place):
        raise ValueError(f'should be a URL such as "s3://bucket/runs" or "file:///mnt/shared" (got {value!r:.80})')
    if "@" in place.partition("/")[0] or "?" in place:  # reject a query, because it may contain a token
        raise ValueError("must not contain credentials: set them in the environment of the client")
    return str(value).rstrip("/")


def run_id(value: Any) -> str:
    from skyward_core.protocol.validators import is_run_id  # imported late, because few pools resume a run

    if not is_run_id(value):
        raise ValueError(f"should be the id of a run (got {value!r:.80})")
    return value


def upload_pattern(value: Any) -> str:
    """Check a pattern of files that the upload of the working folder includes or excludes, and return it."""
    plain = text(value).removeprefix("./")
    parts = plain.split("/")
    if plain.startswith(("/", "~")) or ".." in parts:
        raise ValueError(
            f"{value!r:.80} leads out of the working folder, but only files inside it are sent. Use a relative path, "
            "such as 'data' or '*.bin'"
        )
    if set(parts) <= {"", "."} or any("**" in part != "**" for part in parts):
        raise ValueError(f"{value!r:.80} matches no files. Use a path, or a pattern such as 'data/**' or '*.bin'")
    return plain


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"should be True or False (got {value!r:.60})")
    return value


def integer_between(least: int, most: int) -> Check:
    def check(value: Any) -> int:
        try:
            number = operator.index(value)  # operator.index also accepts integers of NumPy
        except TypeError:
            number = least - 1
        if isinstance(value, bool) or not least <= number <= most:
            raise ValueError(f"should be a whole number from {least} to {most} (got {value!r:.60})")
        return number

    return check


def seconds(*, least: float | None = None, most: float | None = None) -> Check:
    """Return a check of a duration of at least ``least`` seconds, or of a positive duration if ``least`` is None."""
    words = "more than 0" if least is None else f"{least:g} or more" if most is None else f"{least:g} to {most:g}"

    def check(value: Any) -> float:
        number = _number(value)
        # Both comparisons are false for NaN, so NaN is rejected.
        enough = number > 0 if least is None else number >= least
        if not enough or (most is not None and number > most):
            raise ValueError(f"should be a number of seconds, {words} (got {value!r:.60})")
        return number

    return check


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(
    r"(\d+(?:\.\d+)?)\s*(s|sec|second|m|min|minute|h|hour|d|day|w|week|)s?", re.IGNORECASE | re.ASCII
)


def duration(value: Any) -> float:
    """Convert a duration to seconds from a number or a text such as "7d" or "12 hours". 0 is valid."""
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        return float(match[1]) * _UNITS[match[2][:1].lower() or "s"]
    number = _number(value)
    if not 0 <= number < float("inf"):
        raise ValueError(f'should be a time such as "7d" or "12h", or seconds, 0 or more (got {value!r:.60})')
    return number


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)B?", re.IGNORECASE | re.ASCII)


def size(value: Any) -> int:
    """Convert a size to bytes from a number or a text such as "10 GB". 0 is valid."""
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        return int(float(match[1]) * 1000 ** " kmgt".index(match[2].lower() or " "))
    number = _number(value)
    if not 0 <= number < 1 << 62 or number != int(number):
        raise ValueError(f'should be a size such as "10 GB", or bytes, 0 or more (got {value!r:.60})')
    return int(number)


def one_of(*choices: str) -> Check:
    def check(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"should be {' or '.join(map(repr, choices))} (got {value!r:.60})")
        return str(value)

    return check


def one_of_words(*choices: str) -> Check:
    """Return a check like :func:`one_of`. Hyphens in the words may be written as underscores."""
    check = one_of(*choices)
    return lambda value: check(value.replace("_", "-") if isinstance(value, str) else value)


def positive_number(value: Any) -> float:
    """Check that a value is a finite number above 0, and return it."""
    number = _number(value)
    if not 0 < number < float("inf"):
        raise ValueError(f"should be a number above 0 (got {value!r:.60})")
    return number


def one_or_tuple_of(other: Check) -> Check:
    """Return a check of one text or a collection of texts. The value becomes a tuple."""
    many = tuple_of(other)
    return lambda value: (other(value),) if isinstance(value, str) else many(value)


def word_or(word: str, other: Check) -> Check:
    def check(value: Any) -> Any:
        if value == word:
            return word
        try:
            return other(value)
        except ValueError as error:
            raise ValueError(f"should be {word!r}, or {error}") from None

    return check


def optional(other: Check, default: Any = None) -> Check:
    """Return a check that replaces None by the default."""
    return lambda value: default if value is None else other(value)


def tuple_of(other: Check = lambda value: value) -> Check:
    """Return a check of a list, tuple or other collection, whose items must pass another check. Stores a tuple."""

    def check(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str | bytes | Mapping):
            raise ValueError(f"should be a list (got {_type_name(value)})")
        try:
            items = tuple(value)
        except TypeError:
            raise ValueError(f"should be a list (got {_type_name(value)})") from None
        return tuple(map(other, items))

    return check


def instance(kind: type) -> Check:
    def check(value: Any) -> Any:
        if not isinstance(value, kind):
            raise ValueError(f"should be {kind.__name__}(...) (got {_type_name(value)})")
        return value

    return check


# Must equal the variable in runtime/instance_info_and_attempt.py, which must not import this module.
POOL_VARIABLE = "COMPUTE_POOL"


def variables(value: Any) -> dict[str, str]:
    """Check environment variables and return them. Errors never quote their values, which may be secret."""
    if not isinstance(value, Mapping):
        raise ValueError(f"should map names to texts (got {_type_name(value)})")
    for name, held in value.items():
        if not isinstance(name, str) or not isinstance(held, str):
            raise ValueError(f"should map names to texts ({name!r:.60} is of {_type_name(held)})")
    if POOL_VARIABLE in value:
        raise ValueError(f"cannot set {POOL_VARIABLE}: the variable is reserved for the rank's place in the pool")
    return dict(value)


def _number(value: Any) -> float:
    if isinstance(value, str | bytes | bool):
        return float("nan")
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _type_name(value: Any) -> str:
    return type(value).__name__
