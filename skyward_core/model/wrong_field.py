"""Errors that say which field of what a person asked for is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import SkywardError


@contextmanager
def of_field(name: str) -> Iterator[None]:
    """Have an error that says nothing of a field say that it is about this one; it stays what it is otherwise."""
    try:
        yield
    except SkywardError as error:
        error.field = error.field or name
        raise
