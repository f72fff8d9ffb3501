"""What a plugin loads for a rank: no search for garbage goes through it, while it is loaded or later."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from skyward_core.plugins.support.loading import undisturbed


class Node:
    """Refers to itself: freed by a search for garbage alone."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def searches() -> Iterator[list[int]]:
    """The generation of each search for garbage that began."""
    begun: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            begun.append(info["generation"])

    gc.callbacks.append(note)
    yield begun
    gc.callbacks.remove(note)
    gc.enable()


def test_nothing_is_searched_while_it_loads_nor_later(searches: list[int]) -> None:
    with undisturbed():
        searches.clear()
        loaded = [[] for _ in range(100_000)]  # type: ignore[var-annotated]
        assert searches == []
    assert gc.isenabled()
    assert gc.get_freeze_count() >= len(loaded)
    assert not any(each is loaded for each in gc.get_objects())


def test_garbage_from_before_is_freed_all_the_same(searches: list[int]) -> None:
    node = weakref.ref(Node())
    assert node() is not None
    with undisturbed():
        pass
    assert node() is None


def test_a_load_that_fails_leaves_the_search_on(searches: list[int]) -> None:
    with pytest.raises(ImportError), undisturbed():
        raise ImportError("no such library")
    assert gc.isenabled()


def test_who_has_switched_the_search_off_has_it_as_it_was(searches: list[int]) -> None:
    gc.disable()
    node, frozen = weakref.ref(Node()), gc.get_freeze_count()
    with undisturbed():
        pass
    assert not gc.isenabled()
    assert gc.get_freeze_count() == frozen
    assert node() is not None
