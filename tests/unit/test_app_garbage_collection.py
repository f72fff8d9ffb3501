"""Deferred garbage collection of the app."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from weakref import ref

import pytest

import skyward_tui.app as skyward_app
from skyward_tui.app import REST_SECONDS, collect_if_due, defer_collection, freeze_imports


class Thing:
    """Object with a reference to itself, which only a full collection frees once it is old."""

    def __init__(self) -> None:
        self.self = self


@pytest.fixture(autouse=True)
def restore_gc() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.freeze()  # what was kept for good before, all tests among it, is not to be looked through again and again
    gc.set_threshold(*before)


def old_garbage() -> ref[Thing]:
    thing = Thing()
    gc.collect(1)
    return ref(thing)


def make_garbage_collected_objects() -> list[list[int]]:
    """Create as many objects as ten collections of young objects need."""
    return [[] for _ in range(100_000)]


def test_deferred_collection_runs_only_while_no_user_is_active(monkeypatch: pytest.MonkeyPatch) -> None:
    defer_collection()
    gc.collect()
    left = old_garbage()
    monkeypatch.setattr(skyward_app, "DUE", 5)
    many = make_garbage_collected_objects()
    assert left() is not None, "Python has looked of itself"
    assert gc.get_count()[2] >= 5 and many
    collect_if_due(REST_SECONDS / 2)
    assert left() is not None, "somebody was there"
    collect_if_due(REST_SECONDS * 2)
    assert left() is None
    left = old_garbage()
    collect_if_due(REST_SECONDS * 2)
    assert left() is not None, "it had just looked"


@pytest.mark.proof("1 s of a processor")
def test_objects_created_during_freeze_imports_are_not_collected() -> None:
    with freeze_imports():
        assert not gc.isenabled()
        left = old_garbage()
    gc.collect()
    assert gc.isenabled()
    assert left() is not None
    gc.unfreeze()
    gc.collect()
    assert left() is None
