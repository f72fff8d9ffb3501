"""Work of the ranks: each call prints unique lines and returns their hash, so that the lines can be verified.

Each line begins with ``info.run`` and a token of the call.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import skyward_core as sky
from tests.support.task_places import pool_rank


@dataclass(frozen=True)
class Printed:
    """Report of a call about its output."""

    token: str
    value: int
    run: str
    rank: int
    digest: str


def say(token: str, lines: int) -> str:
    """Print lines and return the hash of the printed text."""
    run, digest = sky.instance_info().run, hashlib.sha256()
    for number in range(lines):
        line = f"{run} {token} {number} {'x' * (number * 7 % 90)}"
        digest.update(line.encode() + b"\n")
        print(line)
    return digest.hexdigest()


@sky.function
def work(token: str, value: int, lines: int, seconds: float) -> Printed:
    """Run a rank's part of a run, or a task."""
    info, rank = sky.instance_info(), pool_rank()
    digest = say(token, lines)
    time.sleep(seconds)
    sys.stdout.flush()
    return Printed(token, value * value + rank, info.run, rank, digest)


@sky.function
def count(upto: int, seconds: float, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield increasing numbers, each with bytes derived from it."""
    for number in range(upto):
        time.sleep(seconds)
        yield number, bytes([number % 251]) * size


@sky.function
def double(number: int) -> int:
    """Return twice the value."""
    return 2 * number


@sky.function
def digest_of(values: Iterable[bytes]) -> tuple[int, str]:
    """Return the number of received values and the hash of all values."""
    digest, seen = hashlib.sha256(), 0
    for data in values:
        digest.update(data)
        seen += 1
    return seen, digest.hexdigest()
