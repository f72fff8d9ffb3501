"""Nothing that a rank, a host or a server writes makes a terminal do more than show text in colours."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skyward_core.util.terminal_safe_text import (
    is_plain_ascii,
    reset_colors,
    sanitize_colored,
    sanitize_json,
    sanitize_line,
    sanitize_paragraph,
)
from skyward_core.views.log_buffer import LineSplitter
from skyward_tui.cli.console import LogPrinter
from tests.support.any_text import CHARACTERS
from tests.support.examples import examples
from tests.support.hostile_text import SGR, harm, is_harmful, through_pty

# Pieces that hostile text is made of: introducers and ends in both forms, what parsers ignore and what breaks off.
PIECES = [
    "\x1b", "\x1b[", "\x1b]", "\x1bP", "\x1b_", "\x1b^", "\x1bX", "\x1b\\", "\x1b(", "\x1b%", "\x1b#", "\x9b", "\x9d",
    "\x90", "\x9c", "\x85", "\x07", "\x00", "\x18", "\x1a", "\x7f", "\b", "\t", "\r", "\n", "\x0b", "\x0e", "m", "31",
    ";", ":", "?", ">", " ", "2J", "31m", "52;c;aGk=", "0;title", "8;;http://x", "[", "]", "\\", "c", "H", "$", "text",
    "é", "漢", "👩\u200d💻", "\u202e", "\u2066", "\u2069", "\u200e", "\u200f", "\u061c", "\u2028", "\ufeff", "\u00ad",
    "\U000e0041", "\ud800",
]  # fmt: skip
hostile = st.lists(st.one_of(st.sampled_from(PIECES), st.text(CHARACTERS, max_size=3)), max_size=24).map("".join)


@given(data=st.one_of(hostile.map(lambda text: text.encode("utf-8", "replace")), st.binary(max_size=60)))
@example(data=b"\x1b[\x002J")
@example(data=b"\x1b\x1b[2J\x1b\x00]0;t\x07\x1b[>4;1m\x1b[?25l\x1b[ q\x1b[1 q\x1b[31\x18m")
@example(data="\x9b2J\x9d52;c;aGk=\x9c\u202e".encode())
@settings(max_examples=examples(150))
def test_no_bytes_of_a_rank_yield_more_than_colours_at_a_terminal(data: bytes) -> None:
    def write(sink: Any) -> None:
        printer = LogPrinter(sink, terminal=True)
        printer.feed(0, "out", data)
        printer.finish()

    assert harm(through_pty(write)) == []


@given(data=st.binary(max_size=80), cut=st.integers(0, 80))
def test_a_ring_holds_nothing_else_either(data: bytes, cut: int) -> None:
    lines = LineSplitter()
    for piece in (data[:cut], data[cut:]):
        shown = [*lines.split(piece), lines.preview()]
        assert not any(is_harmful(c) for line in shown for c in SGR.sub("", line))
    for line in lines.split(b"\n"):
        assert harm(reset_colors(line).encode()) == []


@given(text=hostile)
def test_a_field_is_printable_and_one_line(text: str) -> None:
    safe = sanitize_line(text)
    assert not any(c in "\r\n\t\x1b" or is_harmful(c) for c in safe)
    assert sanitize_line(safe) == safe


@given(text=hostile)
def test_a_paragraph_is_printable_and_has_its_lines(text: str) -> None:
    safe = sanitize_paragraph(text)
    assert not any(c in "\r\t\x1b" or is_harmful(c) for c in safe)
    assert safe.count("\n") == text.replace("\r\n", "\n").replace("\r", "\n").count("\n")


@given(text=st.text(st.characters(exclude_categories=["C", "Zl", "Zp"])))
def test_text_that_means_no_harm_stays_as_it_is(text: str) -> None:
    assert sanitize_colored(text) == sanitize_line(text) == sanitize_paragraph(text) == text


@pytest.mark.parametrize(
    ("raw", "log", "name"),
    [
        ("\x1b[1;38;5;200mred\x1b[0m", "\x1b[1;38;5;200mred\x1b[0m", "red"),
        ("\x1b[4:3mcurly\x1b[m", "\x1b[4:3mcurly\x1b[m", "curly"),
        ("\x9b31mred", "\x1b[31mred", "red"),
        ("a\x1b[\x002Jb", "ab", "ab"),
        ("a\x1b[>4;1mb\x1b[?1mc\x1b[1 md", "abcd", "abcd"),
        ("a\x1b]52;c;aGk=\x07b\x1b]0;t\x1b\\c\x9d0;t\x9cd", "abcd", "abcd"),
        ("a\x1b]0;t\x1b[31mb", "a\x1b[31mb", "ab"),
        ("a\x1b]0;never ended", "a0;never ended", "a0;never ended"),
        ("a\x1b[31", "a", "a"),
        ("one\ttwo", "one\ttwo", "one⇥two"),
        ("one\r\ntwo\rthree\n", "one��two�three�", "one↵two↵three↵"),
        ("👩\u200d💻 \xa0", "👩\u200d💻 \xa0", "👩\u200d💻 \xa0"),
        ("\u202eexe.png", "�exe.png", "�exe.png"),
    ],
)
def test_what_stays_of_it(raw: str, log: str, name: str) -> None:
    assert sanitize_colored(raw) == log
    assert sanitize_line(raw) == name


def test_values_are_safe_down_to_their_keys() -> None:
    told = {"a\x1b[2J": ["\x1b]0;t\x07", 1, None], "b\n": {"\u202ec": ("x\ty", True)}}
    assert sanitize_json(told) == {"a": ["", 1, None], "b↵": {"�c": ["x⇥y", True]}}
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    assert "…" in str(sanitize_json(deep))


def test_clean_bytes_need_no_filter() -> None:
    chance = random.Random(3)
    for _ in range(500):
        data = bytes(chance.choices(range(256), k=chance.choice((1, 2, 40))))
        if is_plain_ascii(data):
            assert all(sanitize_colored(line) == line for line in data.decode().split("\n"))
    assert is_plain_ascii(b"tabs\tand lines\n")
    assert not is_plain_ascii("é".encode())  # it may be harmless, but it has to be looked at
