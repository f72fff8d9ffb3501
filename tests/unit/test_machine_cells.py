"""Machines as tables for people: what is amiss is said, whoever of 256 it is about."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skyward_core.views.machine_metrics import MachineMetrics
from skyward_tui.panels.machine_metrics import _UNITS, NODE_COLUMNS
from skyward_tui.text.hardware_cells import (
    HARDWARE_COLUMNS,
    outlier_metrics,
    problem_text,
    quantity,
    rows,
    share,
)


def gang(nodes: int, gpus: int, slow: tuple[int, int] | None = None) -> MachineMetrics:
    book = MachineMetrics()
    for node in range(nodes):
        figures = [{"util": 12 if (node, gpu) == slow else 98, "temp": 60 + gpu % 3} for gpu in range(gpus)]
        sample = {"at": 10.0, "node": {"cpu": 40.0, "memory_used": 1, "memory_total": 4}, "gpus": figures}
        book.feed(node, json.dumps(sample).encode())
    return book


def test_one_slow_gpu_of_256_is_named() -> None:
    book = gang(32, 8, slow=(17, 5))
    assert outlier_metrics(book) == {(17, 5): ["util"]}
    shown = rows(book, 11.0)
    assert len(shown) == 32 * 9 and all(len(row) == len(HARDWARE_COLUMNS) for row in shown)
    assert [row for row in shown if row[-1]] == [
        ("", "5", "12 %", "", "", "62 °C", "", "", "", "unlike the others: util")
    ]
    assert shown[0] == ("n0", "", "40 %", "25 %", "", "", "", "", "", "")


@pytest.mark.parametrize(
    ("name", "others", "near", "far"),
    [
        ("cpu", [97.0, 97.1, 96.9, 97.0], 94.0, 60.0),
        ("util", [98, 98, 98, 98], 90, 12),
        ("temp", [60, 60, 61, 60], 67, 80),
        ("power", [650, 651, 649, 650], 625, 300),
        ("cpu", [0.1, 0.1, 0.2, 0.1], 4.0, 50.0),
    ],
)
def test_who_is_far_only_by_how_much_alike_the_others_are_is_not_named(
    name: str, others: list[float], near: float, far: float
) -> None:
    for value, odd in ((near, {}), (far, {4: [name]})):
        book = MachineMetrics()
        for node, measured in enumerate([*others, value]):
            figures: dict[str, Any] = {"node": {"cpu": measured}} if name == "cpu" else {"gpus": [{name: measured}]}
            book.feed(node, json.dumps({"at": 10.0} | figures).encode())
        assert {node: names for (node, _), names in outlier_metrics(book).items()} == odd


def test_figures_of_before_are_not_shown_as_of_now() -> None:
    book = gang(1, 1)
    book.set_silence_reason(1, "its agent is of an older release")
    assert [(row[0], row[2], row[-1]) for row in rows(book, 60.0)] == [
        ("n0", "", "no figures of now"), ("n1", "", "its agent is of an older release")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"lost": 1}, "lost by the driver"),
        ({"xid": 79, "ecc": 2}, "Xid 79; 2 ECC errors"),
        ({"throttle": 0x44}, "slowed: power cap, too hot (hardware)"),
        ({"throttle": 0, "ecc": 0, "util": 5}, ""),
        ({"mem_used": 97.0, "mem_total": 100.0}, "memory nearly full"),
        ({"mem_used": 97.0}, ""),
    ],
)
def test_what_is_amiss_is_said(figures: dict[str, float], said: str) -> None:
    assert problem_text(figures) == said


def test_numbers_with_their_units() -> None:
    assert (quantity(98.2, "%"), quantity(1.25e9, "B/s"), quantity(3.0, "")) == ("98 %", "1.25 GB/s", "3")
    assert (share(1.0, 4.0), share(None, 4.0), share(1.0, 0.0)) == ("25 %", "", "")


@pytest.mark.parametrize("unit", ["B", "B/s"])
def test_a_size_is_never_wider_than_its_column(unit: Any) -> None:
    """150 bytes/s stood on the figure before it, and 1000 kB/s was 1e+03 kB/s."""
    room = min(width for _, names, width in NODE_COLUMNS if _UNITS.get(names[0]) == unit)
    for size in (0, 9.994, 150, 999.4, 999.6, 999_499, 999_600, 123.4e6, 999.6e6, 999.6e9):
        assert len(quantity(size, unit)) < room and "e+" not in quantity(size, unit), size
