"""What ranks do meanwhile: each call prints lines of its own, and tells their hash, so that they can be accounted for.

``info.run`` and a token of the call begin each line.
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
    """What a call says of itself."""

    token: str
    value: int
    run: str
    rank: int
    digest: str


def say(token: str, lines: int) -> str:
    """Print lines; give the hash of what was printed."""
    run, digest = sky.instance_info().run, hashlib.sha256()
    for number in range(lines):
        line = f"{run} {token} {number} {'x' * (number * 7 % 90)}"
        digest.update(line.encode() + b"\n")
        print(line)
    return digest.hexdigest()


@sky.function
def work(token: str, value: int, lines: int, seconds: float) -> Printed:
    """A rank's part of a run, or a task."""
    info, rank = sky.instance_info(), pool_rank()
    digest = say(token, lines)
    time.sleep(seconds)
    sys.stdout.flush()
    return Printed(token, value * value + rank, info.run, rank, digest)


@sky.function
def count(upto: int, seconds: float, size: int) -> Iterator[tuple[int, bytes]]:
    """Numbers in order, each with bytes made of it."""
    for number in range(upto):
        time.sleep(seconds)
        yield number, bytes([number % 251]) * size


@sky.function
def double(number: int) -> int:
    """Twice as much."""
    return 2 * number


@sky.function
def digest_of(values: Iterable[bytes]) -> tuple[int, str]:
    """How many values came, and the hash of all."""
    digest, seen = hashlib.sha256(), 0
    for data in values:
        digest.update(data)
        seen += 1
    return seen, digest.hexdigest()
