"""Names, keys and values as they lie on the server of the plugin ``shared``."""

from __future__ import annotations

import ast
import math
import pickle
from typing import Any, TypeAlias

from ...model.errors import UsageError
from ...model.sizes import size_in_words

LARGEST = 500 << 20  # bytes of a value; the server breaks connections off that send it 512 MB in one
Key: TypeAlias = "str | int | float | bytes | bool | tuple[Key, ...] | None"


def named(kind: str, name: str) -> str:
    """What something is called on the server: a dict and a set of one name are two things.

    Raises:
        UsageError: the name is no text, or empty.
    """
    if not isinstance(name, str) or not name:
        raise UsageError(f"a shared {kind} is named by a text, not {name!r}")
    return f"{kind}:{name.encode('utf-8', 'backslashreplace').decode()}"


def whole(number: object) -> int:
    """A whole number, as it is.

    Raises:
        UsageError: it is none.
    """
    if not isinstance(number, int):
        raise UsageError(f"a counter counts in whole numbers, not {number!r}")
    return int(number)


def pack_key(key: Key) -> bytes:
    """A key as bytes: the same for the same value in any process, which pickles are not.

    Raises:
        UsageError: it is no plain value.
    """
    _check_plain(key)
    return ascii(key).encode()


def _check_plain(key: object) -> None:
    if isinstance(key, tuple) and type(key) is tuple:
        for part in key:
            _check_plain(part)
    elif key is not None and type(key) not in (str, int, float, bytes, bool):
        kind = type(key).__name__
        raise UsageError(
            f"keys of a dict and members of a set are texts, numbers, None or tuples of these, not {kind}"
        )
    elif isinstance(key, float) and not math.isfinite(key):
        raise UsageError(f"{key} is no key: it is not a finite number")


def unpack_key(data: bytes) -> Key:
    """What :func:`pack_key` packed."""
    key: Key = ast.literal_eval(data.decode())
    return key


def pack(value: Any) -> bytes:
    """A value as bytes.

    Raises:
        UsageError: it cannot be pickled, or is too large.
    """
    import cloudpickle  # a class of the script goes along with its instances

    try:
        data: bytes = cloudpickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # a reducer may raise anything
        raise UsageError(f"a value of type {type(value).__name__} cannot be shared: {error}") from error
    if len(data) > LARGEST:
        raise UsageError(
            f"a value of type {type(value).__name__} has {size_in_words(len(data))}; one that is shared has at most "
            f"{size_in_words(LARGEST)}: write it to a file"
        )
    return data


def unpack(data: bytes) -> Any:
    """What :func:`pack` packed: only the pool's own reach the server."""
    return pickle.loads(data)
