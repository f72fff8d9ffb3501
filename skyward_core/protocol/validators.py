"""Validators for the fields of frames, and the class that describes the schema of a frame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Any

from skyward_core.protocol.frame_codec import MAX_INTEGER

if TYPE_CHECKING:
    from typing import TypeGuard

LOG_STREAMS = ("out", "err", "marks", "metrics")  # endings of the names of a worker's log files
MAX_TEXT = 4096  # maximum characters of a path, as in Linux
RANKS, CALLS = 1 << 20, 1 << 24  # maximum numbers of ranks and of calls, far beyond practical sizes

# The validators use no regular expressions, because compiling them would delay the start of each process.
_ALNUM = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_IN_RUN, _IN_FILE = _ALNUM + "_-", _ALNUM + "_.-"

Check = Callable[[Any], object]
Checks = dict[str, Check]


def is_text(value: Any) -> TypeGuard[str]:
    return type(value) is str


def is_bool(value: Any) -> TypeGuard[bool]:
    return type(value) is bool


def is_number(value: Any) -> TypeGuard[float]:
    """Check whether a value is a finite number within the allowed bounds."""
    return (type(value) is float or type(value) is int) and -MAX_INTEGER < value < MAX_INTEGER


def is_integer(value: Any) -> TypeGuard[int]:
    return type(value) is int


def is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < MAX_INTEGER


def is_call_index(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < CALLS


def is_rank(value: Any) -> TypeGuard[int]:
    """Check whether a value is the number of a rank or node, or -1 for none."""
    return type(value) is int and -1 <= value < RANKS


def is_node_text(value: Any) -> TypeGuard[str]:
    """Check whether a value is the number of a node as text, which is needed for keys of JSON objects."""
    return type(value) is str and _is_digits(value, 1, 7)


def is_signature(value: Any) -> TypeGuard[str]:
    """Check whether a value is ASCII text, because ``hmac.compare_digest`` accepts no other text."""
    return type(value) is str and value.isascii()


# Most ids consist only of letters and digits, which one fast check of the whole string confirms.
def is_run_id(value: Any) -> TypeGuard[str]:
    if type(value) is not str or not 0 < len(value) <= 64:
        return False
    return (value.isalnum() and value.isascii()) or not value.strip(_IN_RUN)


def is_file_name(value: Any) -> TypeGuard[str]:
    """Check whether a value is a plain file name, not a path."""
    if type(value) is not str or not 0 < len(value) <= 200:
        return False
    return (value.isalnum() and value.isascii()) or (value[0] in _ALNUM and not value.strip(_IN_FILE))


def is_relative_subpath(value: Any) -> TypeGuard[str]:
    """Check whether a value is a relative path that does not lead out of its folder."""
    if type(value) is not str or not 0 < len(value) <= MAX_TEXT or "\0" in value:
        return False
    return all(part not in ("", ".", "..") for part in value.split("/"))


def is_log_name(value: Any) -> TypeGuard[str]:
    """Check whether a value is the name of a log file, which consists of rank, slot and stream."""
    return type(value) is str and is_valid_log_name(value)


@lru_cache(1024)
def is_valid_log_name(name: str) -> bool:
    rank, *slot, stream = name.split(".") if 0 < name.count(".") < 3 else ("", "")
    return (
        rank.startswith("r")
        and _is_digits(rank[1:], 3, 7)
        and all(_is_digits(number, 1, 4) for number in slot)
        and stream in LOG_STREAMS
    )


def _is_digits(text: str, least: int, most: int) -> bool:
    return least <= len(text) <= most and text.isascii() and text.isdigit()


def one_of(*values: str) -> Check:
    return lambda value: type(value) is str and value in values


def optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def list_of(check: Check) -> Check:
    return lambda value: type(value) is list and all(map(check, value))


def dict_of(name: Callable[[str], object], check: Check) -> Check:
    """Return a validator of dictionaries that validates each key and each value."""

    def each(value: Any) -> bool:
        if type(value) is not dict:
            return False
        for key, one in value.items():  # noqa: SIM110  # a generator would be slower
            if not (name(key) and check(one)):
                return False
        return True

    return each


def split_keys(groups: Iterable[Checks]) -> tuple[Checks, Checks]:
    """Split the keys of a schema into required and optional keys. The names of optional keys end in "?"."""
    needs: Checks = {}
    may: Checks = {}
    for group in groups:
        for key, check in group.items():
            if key[-1] == "?":
                may[key[:-1]] = check
            else:
                needs[key] = check
    for key in needs.keys() & may.keys():
        del may[key]
    return needs, may


def object_of(*groups: Checks, only: bool = False, usual: Any = None) -> Check:
    """Return a validator of objects.

    Args:
        groups: Validators of the keys; names of optional keys end in "?".
        only: Whether to reject other keys.
        usual: Valid object that is so frequent that it is recognized without validating each key.
    """
    needs, may = split_keys(groups)
    find = {**needs, **may}.get

    def check(value: Any) -> bool:
        if type(value) is not dict or not value.keys() >= needs.keys():
            return False
        if value == usual:
            return True
        for key, one in value.items():
            found = find(key)
            if only if found is None else not found(one):
                return False
        return True

    return check


def is_rank_count(ranks: Any) -> TypeGuard[int]:
    """Check whether a value is a possible number of ranks per node.

    0 is valid: an agent that only serves retained results has no ranks.
    """
    return type(ranks) is int and 0 <= ranks <= 4096


def is_span(value: Any) -> TypeGuard[list[int]]:
    if type(value) is not list or len(value) != 2:
        return False
    start, end = value
    return type(start) is int and type(end) is int and 0 <= start < MAX_INTEGER and 0 <= end < MAX_INTEGER


def is_metric_summary(value: Any) -> TypeGuard[list[float | None]]:
    """Check whether a value is a metric's last, minimum and maximum value. A non-finite value is sent as None."""
    if type(value) is not list or len(value) != 3:
        return False
    return all(each is None or (type(each) is float and isfinite(each)) for each in value)


def is_stack_frame(value: Any) -> TypeGuard[list[Any]]:
    """Check whether a value is a stack frame, which is a list of function, file and line."""
    if type(value) is not list or len(value) != 3:
        return False
    function, file, line = value
    return type(function) is str and type(file) is str and type(line) is int and 0 <= line < MAX_INTEGER


def is_blob(value: Any) -> TypeGuard[tuple[str, int]]:
    if type(value) is not list or len(value) != 2:
        return False
    name, size = value
    return type(size) is int and 0 <= size < MAX_INTEGER and is_file_name(name)


def is_rank_info(value: Any) -> TypeGuard[dict[str, Any]]:
    """Check whether a value is a JSON object, for a rank's :class:`InstanceInfo`. The reader validates its keys."""
    return type(value) is dict


def is_node_place(value: Any) -> TypeGuard[tuple[int, str, int]]:
    """Check whether a value consists of a node's number, address and port."""
    return (
        type(value) in (list, tuple)
        and len(value) == 3
        and is_rank(value[0])
        and is_text(value[1])
        and is_port(value[2])
    )


def is_address(value: Any) -> TypeGuard[tuple[str, int]]:
    """Check whether a value consists of a host and a port."""
    return type(value) in (list, tuple) and len(value) == 2 and is_text(value[0]) and is_port(value[1])


def is_port(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 1 << 16


def is_plain(value: Any, depth: int = 40) -> bool:
    """Check whether a value is JSON data of bounded depth. Reject non-finite numbers, which are not standard JSON."""
    kind = type(value)
    if kind is dict:
        value = value.values()
    elif kind is not list:
        return kind is not float or isfinite(value)
    return depth > 0 and all(is_plain(each, depth - 1) for each in value)


MAX_HEADER_BYTES = 8 << 20  # default of the maximum bytes of a header; some kinds of frames have their own limit


class FrameSchema:
    """Schema of one kind of frame: keys, size limits, and answer.

    The comment above a schema in its table is the description on the protocol page.

    Args:
        groups: Validators of the keys; names of optional keys end in "?".
        body: Maximum bytes of the body.
        head: Maximum bytes of the header.
        answer: Additional keys of the answer, which is a frame ``answered_by``.
        answered_by: Kind of the answer.
        may_fail: Whether the answer may be an error instead.
    """

    __slots__ = ("answer", "answered_by", "body", "checks", "head", "may", "may_fail", "needs")

    def __init__(
        self,
        *groups: Checks,
        body: int = 0,
        head: int = MAX_HEADER_BYTES,
        answer: Checks = {},  # noqa: B006  never changed
        answered_by: str = "known",
        may_fail: bool = False,
    ) -> None:
        self.needs, self.may = split_keys(groups)
        self.checks = {**self.needs, **self.may}
        self.body = body
        self.head = head
        self.answer = answer
        self.answered_by = answered_by
        self.may_fail = may_fail


FrameSchemas = Mapping[str, FrameSchema]
