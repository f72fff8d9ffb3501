"""Odd user code ends in an outcome that says what happened: never a hang, nor a worker that is dead without a cause."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky


@pytest.fixture(scope="module")
def pool(world: Path) -> Iterator[sky.Compute]:
    with sky.Compute(provider=sky.Local(), nodes=1, options=sky.Options(console=False, grace=1.0)) as compute:
        yield compute


def exits_as_text() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise SystemExit(5)

    raise Odd


def exits_when_its_notes_are_read() -> None:
    class Odd(Exception):
        @property
        def __notes__(self) -> list[str]:  # type: ignore[override]
            raise SystemExit(5)

    raise Odd("without notes")


def exits_when_pickled() -> object:
    class Odd:
        def __reduce__(self) -> str:
            raise SystemExit(5)

    return Odd()


def exits_when_its_error_is_pickled() -> None:
    class Odd(Exception):
        def __reduce__(self) -> str:
            raise SystemExit(5)

    raise Odd("told all the same")


def deep_group() -> None:
    error: Exception = ValueError("at the bottom")
    for _ in range(600):
        error = ExceptionGroup("deep", [error])
    raise error


def no_stdout() -> int:
    sys.stdout = sys.stderr = None  # type: ignore[assignment]
    return 7


def no_open() -> bytes:
    import builtins

    builtins.open = None  # type: ignore[assignment]
    return bytes(200_000)


def no_clock() -> int:
    for name in ("time", "monotonic", "perf_counter", "sleep"):
        setattr(time, name, None)
    print("without a clock")
    return 8


def closes_all() -> int:
    os.closerange(3, 4096)
    print("on its own")
    return 9


@pytest.mark.parametrize(
    ("fn", "told"),
    [
        (exits_as_text, "its __str__ raised SystemExit"),
        (exits_when_its_notes_are_read, "without notes"),
        (exits_when_pickled, "cannot be sent back: Odd object"),
        (exits_when_its_error_is_pickled, "told all the same"),
        (deep_group, r"ExceptionGroup: deep \(1 sub-exception\)"),
        (no_stdout, 7),
        (no_open, bytes(200_000)),
        (no_clock, 8),
        (closes_all, 9),
    ],
)
def test_it_is_told(pool: sky.Compute, fn: Callable[[], Any], told: Any) -> None:
    call = sky.function(timeout=30)(fn)
    if isinstance(told, str):
        with pytest.raises(sky.RunError, match=told):
            call() @ pool
    else:
        assert call() @ pool == [told]
    # The same worker where it lives on, else another one; what it is given now comes to it by a file.
    assert sky.function(len)(bytes(200_000)) @ pool == [200_000]
    with pytest.raises(sky.RunError, match="status 3"):
        sky.function(lambda: os._exit(3))() @ pool
    assert sky.function(lambda: 1)() @ pool == [1]
