"""The app looks through all that there is only while nobody waits for it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from weakref import ref

import pytest

from skyward_tui.app import garbage_collection
from skyward_tui.app.garbage_collection import REST_SECONDS, collect_if_due, defer_collection, freeze_imports


class Thing:
    """Refers to itself: nothing but a look through all ends it, once it is old."""

    def __init__(self) -> None:
        self.self = self


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.freeze()  # what was kept for good before, all tests among it, is not to be looked through again and again
    gc.set_threshold(*before)


def old_garbage() -> ref[Thing]:
    thing = Thing()
    gc.collect(1)
    return ref(thing)


def some_time() -> list[list[int]]:
    """As many new things as take ten rounds."""
    return [[] for _ in range(100_000)]


def test_what_is_old_is_looked_through_once_nobody_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    defer_collection()
    gc.collect()
    left = old_garbage()
    monkeypatch.setattr(garbage_collection, "DUE", 5)
    many = some_time()
    assert left() is not None, "Python has looked of itself"
    assert gc.get_count()[2] >= 5 and many
    collect_if_due(REST_SECONDS / 2)
    assert left() is not None, "somebody was there"
    collect_if_due(REST_SECONDS * 2)
    assert left() is None
    left = old_garbage()
    collect_if_due(REST_SECONDS * 2)
    assert left() is not None, "it had just looked"


def test_what_is_there_when_it_looks_first_is_kept_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage_collection, "DUE", 4)
    defer_collection()
    thing = Thing()
    first, later = ref(thing), []
    many = some_time()
    collect_if_due(REST_SECONDS * 2)
    assert gc.get_freeze_count() > len(many)
    del thing
    later.append(old_garbage())
    many += some_time()
    collect_if_due(REST_SECONDS * 2)
    assert later[0]() is None and first() is not None


def test_who_has_not_put_it_off_keeps_pythons_own_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage_collection, "DUE", 0)
    monkeypatch.setattr(garbage_collection.gc, "get_threshold", lambda: (700, 10, 10))  # type: ignore[attr-defined]
    looks: list[int] = []
    monkeypatch.setattr(garbage_collection.gc, "collect", lambda *which: looks.append(1))  # type: ignore[attr-defined]
    collect_if_due(REST_SECONDS * 2)
    assert looks == []


@pytest.mark.proof("1 s of a processor")
def test_what_is_kept_for_good_is_looked_through_never() -> None:
    with freeze_imports():
        assert not gc.isenabled()
        left = old_garbage()
    gc.collect()
    assert gc.isenabled()
    assert left() is not None
    gc.unfreeze()
    gc.collect()
    assert left() is None
