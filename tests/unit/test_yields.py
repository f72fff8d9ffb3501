"""A generator's values that wait for their reader: none lost, none twice, wherever the agent dies."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from skyward_core.node.agent import generator_values
from skyward_core.node.agent.generator_values import GeneratorBuffer
from skyward_core.protocol.frame_codec import WINDOW, Decoder, encode_frame
from tests.support.examples import examples


def value(number: int, file: str | None = None, size: int = 10) -> bytes:
    header = {"t": "item", "seq": number} | ({"file": file} if file else {})
    return encode_frame(header, bytes([number % 256]) * size)


def numbers(frames: list[bytes]) -> list[int]:
    return [header["seq"] for data in frames for header, _ in Decoder().feed(data)]


def test_what_a_worker_sends_again_is_taken_once(tmp_path: Path) -> None:
    kept = GeneratorBuffer(tmp_path / "values")
    assert [kept.add(n, None, value(n)) for n in (0, 1, 1, 0, 2)] == [True, True, False, False, True]
    assert numbers(kept.pop_sendable()) == [0, 1, 2]
    assert kept.pop_sendable() == []


def test_a_reader_gets_no_more_than_its_window(tmp_path: Path) -> None:
    kept = GeneratorBuffer(tmp_path / "values")
    for n in range(WINDOW + 5):
        kept.add(n, None, value(n))
    assert numbers(kept.pop_sendable()) == list(range(WINDOW))
    kept.acknowledge(3)
    assert numbers(kept.pop_sendable()) == list(range(WINDOW, WINDOW + 3))
    kept.next_unsent = 3  # it comes back, and these never arrived
    assert numbers(kept.pop_sendable()) == list(range(3, WINDOW + 3))


def test_the_next_agent_finds_what_the_last_one_kept(tmp_path: Path) -> None:
    kept = GeneratorBuffer(tmp_path / "values")
    for n in range(4):
        kept.add(n, None, value(n))
    with open(tmp_path / "values", "ab") as file:
        file.write(value(4)[:-1])  # it died at this
    found = GeneratorBuffer(tmp_path / "values")
    assert (found.first, found.next_number) == (0, 4)
    assert found.add(4, None, value(4))
    assert numbers(found.pop_sendable()) == [0, 1, 2, 3, 4]


def test_files_of_large_values_end_when_they_are_taken(tmp_path: Path) -> None:
    kept = GeneratorBuffer(tmp_path / "values")
    for n in range(3):
        (tmp_path / f"{n}.item").touch()
        kept.add(n, f"{n}.item", value(n, f"{n}.item"))
    GeneratorBuffer(tmp_path / "values").acknowledge(1)
    assert sorted(path.name for path in tmp_path.glob("*.item")) == ["1.item", "2.item"]
    kept.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_value_that_no_disk_took_is_missing_and_no_other(tmp_path: Path) -> None:
    kept = GeneratorBuffer(tmp_path / "no folder" / "values")
    assert kept.add(0, None, value(0))
    assert numbers(kept.pop_sendable()) == []
    kept.acknowledge(1)
    kept.remove()


@settings(max_examples=examples(60))
@given(st.lists(st.sampled_from(("add", "take", "die")), max_size=80))
def test_whatever_happens_the_reader_gets_the_rest(tmp_path_factory, steps: list[str]) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path_factory.mktemp("yields") / "values"
    room, few = generator_values.COMPACT_THRESHOLD, generator_values.MAX_COMPACT_BYTES
    generator_values.COMPACT_THRESHOLD, generator_values.MAX_COMPACT_BYTES = 100, 200
    try:
        kept, made, taken = GeneratorBuffer(path), 0, 0
        for step in steps:
            if step == "add":
                kept.add(made, None, value(made, size=20))
                made += 1
            elif step == "take" and taken < made:
                taken += 1
                kept.acknowledge(taken)
            elif step == "die":
                kept = GeneratorBuffer(path)
                kept.acknowledge(taken)
        kept.next_unsent = taken
        kept.acknowledge(taken)
        got = []
        while due := numbers(kept.pop_sendable()):
            got += due
            kept.acknowledge(due[-1] + 1)
        assert got == list(range(taken, made))
        kept.remove()
    finally:
        generator_values.COMPACT_THRESHOLD, generator_values.MAX_COMPACT_BYTES = room, few
