"""Streaming of iterator arguments to ranks and of yielded values to clients: each once and in order."""

from __future__ import annotations

import pickle
import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyward_core.node.agent import generator_values
from skyward_core.node.agent.generator_values import GeneratorBuffer
from skyward_core.pool.runs import iterator_argument_stream
from skyward_core.pool.runs.iterator_argument_stream import ArgumentStream, Frames
from skyward_core.protocol.frame_codec import WINDOW, Decoder, encode_frame
from skyward_core.runtime.rank_side_async_stream_and_map_calls import StreamedIterator
from tests.support.examples import examples


class Line:
    """Connection between a stream and its readers, which may lose everything in transit."""

    def __init__(self, readers: int, values: Any) -> None:
        self.frames: queue.Queue[Any] = queue.Queue()
        self.items = [StreamedIterator(0, "values") for _ in range(readers)]
        self.lossy: Callable[[], bool] = lambda: False
        about = "run", 0, "values", values, pickle.dumps, range(readers)
        self.feeding = ArgumentStream(*about, self._send)
        for index, items in enumerate(self.items):
            ask = lambda items, index=index: self._want(index, items)  # type: ignore[misc]  # noqa: E731
            items.bind(ask, self._wait, lambda _, load: load())

    def _send(self, frames: Frames) -> None:
        for frame in frames:
            self.frames.put(frame)

    def _want(self, index: int, items: StreamedIterator, *, again: bool = False) -> None:
        begin, end = items.wanted_range
        want: Any = {"t": "want", "run": "run", "i": index, "arg": 0, "next": begin, "until": end}
        self.feeding.on_want(want | ({"again": True} if again or not begin else {}))

    def _wait(self, come: Callable[[], bool]) -> None:
        while not come():
            index, header, body = self.frames.get(timeout=30)
            if self.lossy():
                while not self.frames.empty():
                    self.frames.get_nowait()
                for number, items in enumerate(self.items):
                    if items.is_waiting:
                        self._want(number, items, again=True)
                continue
            more, ends = header.get("more", False), header.get("ends", "")
            self.items[index].add_part(header["seq"], header["part"], body, more=more, ends=ends)


@settings(max_examples=examples(40), deadline=None)
@given(
    values=st.lists(st.binary(max_size=30), max_size=80),
    losses=st.sets(st.integers(0, 150)),
    readers=st.integers(1, 3),
    piece=st.integers(3, 20),
)
def test_readers_get_iterator_values_once_in_order(
    values: list[bytes], losses: set[int], readers: int, piece: int
) -> None:
    taken = iter(range(1_000_000))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(iterator_argument_stream, "MAX_INLINE_BYTES", piece)
        line = Line(readers, (value for value in values))
        line.lossy = lambda: next(taken) in losses
        got: list[list[bytes]] = [[] for _ in range(readers)]
        open_ones = dict(enumerate(line.items))
        while open_ones:
            for index, items in list(open_ones.items()):
                try:
                    got[index].append(next(items))
                except StopIteration:
                    del open_ones[index]
        line.feeding.close()
    assert got == [values] * readers


def test_slow_rank_bounds_the_read_ahead_of_other_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterator_argument_stream, "MAX_KEPT_VALUES", 8)
    read: list[int] = []
    line = Line(2, (read.append(n) or n for n in range(10**9)))  # type: ignore[func-returns-value]
    assert [next(line.items[0]) for _ in range(8)] == list(range(8))
    line._want(0, line.items[0])
    with pytest.raises(queue.Empty):
        line.frames.get(timeout=0.2)
    assert len(read) == 8
    line.feeding.on_call_end(1)  # it reads no more, and holds nobody up
    assert next(line.items[0]) == 8
    line.feeding.close()


def test_reading_values_of_an_ended_call_is_an_error() -> None:
    line = Line(1, iter([1, 2]))
    line.items[0].close()
    with pytest.raises(RuntimeError, match="has no more values, because its call"):
        next(line.items[0])
    with pytest.raises(TypeError, match="Send its values instead"):
        pickle.dumps(line.items[0])


# A generator's values that wait for their reader: none lost, none twice, wherever the agent dies.


def value(number: int, file: str | None = None, size: int = 10) -> bytes:
    header = {"t": "item", "seq": number} | ({"file": file} if file else {})
    return encode_frame(header, bytes([number % 256]) * size)


def numbers(frames: list[bytes]) -> list[int]:
    return [header["seq"] for data in frames for header, _ in Decoder().feed(data)]


def test_generator_buffer_sends_no_more_than_its_window(tmp_path: Path) -> None:
    buffer = GeneratorBuffer(tmp_path / "values")
    for n in range(WINDOW + 5):
        buffer.add(n, None, value(n))
    assert numbers(buffer.pop_sendable()) == list(range(WINDOW))
    buffer.acknowledge(3)
    assert numbers(buffer.pop_sendable()) == list(range(WINDOW, WINDOW + 3))
    buffer.next_unsent = 3  # it comes back, and these never arrived
    assert numbers(buffer.pop_sendable()) == list(range(3, WINDOW + 3))


def test_generator_buffer_is_restored_by_the_next_agent(tmp_path: Path) -> None:
    buffer = GeneratorBuffer(tmp_path / "values")
    for n in range(4):
        buffer.add(n, None, value(n))
    with open(tmp_path / "values", "ab") as file:
        file.write(value(4)[:-1])  # it died at this
    found = GeneratorBuffer(tmp_path / "values")
    assert (found.first, found.next_number) == (0, 4)
    assert found.add(4, None, value(4))
    assert numbers(found.pop_sendable()) == [0, 1, 2, 3, 4]


def test_files_of_large_values_are_removed_when_acknowledged(tmp_path: Path) -> None:
    buffer = GeneratorBuffer(tmp_path / "values")
    for n in range(3):
        (tmp_path / f"{n}.item").touch()
        buffer.add(n, f"{n}.item", value(n, f"{n}.item"))
    GeneratorBuffer(tmp_path / "values").acknowledge(1)
    assert sorted(path.name for path in tmp_path.glob("*.item")) == ["1.item", "2.item"]
    buffer.remove()
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=examples(60))
@given(st.lists(st.sampled_from(("add", "take", "die")), max_size=80))
def test_generator_buffer_delivers_all_values_across_restarts(tmp_path_factory, steps: list[str]) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path_factory.mktemp("yields") / "values"
    room, few = generator_values.COMPACT_THRESHOLD, generator_values.MAX_COMPACT_BYTES
    generator_values.COMPACT_THRESHOLD, generator_values.MAX_COMPACT_BYTES = 100, 200
    try:
        buffer, made, taken = GeneratorBuffer(path), 0, 0
        for step in steps:
            if step == "add":
                buffer.add(made, None, value(made, size=20))
                made += 1
            elif step == "take" and taken < made:
                taken += 1
                buffer.acknowledge(taken)
            elif step == "die":
                buffer = GeneratorBuffer(path)
                buffer.acknowledge(taken)
        buffer.next_unsent = taken
        buffer.acknowledge(taken)
        got = []
        while due := numbers(buffer.pop_sendable()):
            got += due
            buffer.acknowledge(due[-1] + 1)
        assert got == list(range(taken, made))
        buffer.remove()
    finally:
        generator_values.COMPACT_THRESHOLD, generator_values.MAX_COMPACT_BYTES = room, few
