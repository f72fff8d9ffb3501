"""Hardware tables, errors of pool operators and verbs, and output for terminals without Unicode or colours."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import cloudpickle
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.color import Color

import skyward_core
import skyward_core as sky
import skyward_tui
from skyward_core.model.errors import PoolError
from skyward_core.views.machine_metrics import MachineMetrics
from skyward_tui.panels.machine_metrics import _UNITS, NODE_COLUMNS
from skyward_tui.text.hardware_and_offer_cells import (
    HARDWARE_COLUMNS,
    outlier_metrics,
    problem_text,
    quantity,
    rows,
    share,
)
from skyward_tui.text.state_styles import _STATE_STYLES, state_style
from skyward_tui.text.text_width_tables_and_ascii import plain_ascii
from skyward_tui.ui.themes import ColourRemover


def gang(nodes: int, gpus: int, slow: tuple[int, int] | None = None) -> MachineMetrics:
    book = MachineMetrics()
    for node in range(nodes):
        figures = [{"util": 12 if (node, gpu) == slow else 98, "temp": 60 + gpu % 3} for gpu in range(gpus)]
        sample = {"at": 10.0, "node": {"cpu": 40.0, "memory_used": 1, "memory_total": 4}, "gpus": figures}
        book.feed(node, json.dumps(sample).encode())
    return book


def test_one_slow_gpu_of_256_is_an_outlier() -> None:
    book = gang(32, 8, slow=(17, 5))
    assert outlier_metrics(book) == {(17, 5): ["util"]}
    shown = rows(book, 11.0)
    assert len(shown) == 32 * 9 and all(len(row) == len(HARDWARE_COLUMNS) for row in shown)
    assert [row for row in shown if row[-1]] == [("", "5", "12 %", "", "", "62 °C", "", "", "", "outlier: util")]
    assert shown[0] == ("n0", "", "40 %", "25 %", "", "", "", "", "", "")


@pytest.mark.parametrize(
    ("name", "others", "near", "far"),
    [
        ("cpu", [97.0, 97.1, 96.9, 97.0], 94.0, 60.0),
        ("temp", [60, 60, 61, 60], 67, 80),
        ("cpu", [0.1, 0.1, 0.2, 0.1], 4.0, 50.0),
    ],
)
def test_small_deviation_from_uniform_values_is_no_outlier(
    name: str, others: list[float], near: float, far: float
) -> None:
    for value, odd in ((near, {}), (far, {4: [name]})):
        book = MachineMetrics()
        for node, measured in enumerate([*others, value]):
            figures: dict[str, Any] = {"node": {"cpu": measured}} if name == "cpu" else {"gpus": [{name: measured}]}
            book.feed(node, json.dumps({"at": 10.0} | figures).encode())
        assert {node: names for (node, _), names in outlier_metrics(book).items()} == odd


@pytest.mark.parametrize("machines", [1, 2])
def test_nodes_of_one_machine_are_not_compared_with_each_other(machines: int) -> None:
    book = MachineMetrics()
    for node, cpu in enumerate([97.0, 97.1, 96.9, 97.0, 20.0]):
        boot = {"devices": [], "boot": f"b{node % machines}"}
        book.feed(node, json.dumps({"at": 10.0, "node": {"cpu": cpu}} | boot).encode())
    assert outlier_metrics(book) == {}


@pytest.mark.parametrize("machines", [1, 2, 3, 5])
def test_nodes_of_one_machine_share_a_row(machines: int) -> None:
    book = MachineMetrics()
    for node in range(5):
        boot = {"devices": [], "boot": f"b{node % machines}"}
        book.feed(node, json.dumps({"at": 10.0, "node": {"cpu": 50.0}} | boot).encode())
    shown = [row[0] for row in rows(book, 11.0)]
    assert shown == {1: ["n0-4"], 2: ["n0,2,4", "n1,3"], 3: ["n0,3", "n1,4", "n2"]}.get(
        machines, [*map("n{}".format, range(5))]
    )
    book.set_silence_reason(1, "no agent")
    assert ("n1", "no agent") in [(row[0], row[-1]) for row in rows(book, 11.0)]


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"lost": 1}, "lost by the driver"),
        ({"xid": 79, "ecc": 2}, "Xid 79; 2 ECC errors"),
        ({"throttle": 0x44}, "throttling: power cap, too hot (hardware)"),
        ({"mem_used": 97.0, "mem_total": 100.0}, "memory nearly full"),
    ],
)
def test_problem_text_names_each_problem(figures: dict[str, float], message: str) -> None:
    assert problem_text(figures) == message


def test_metric_quantities_are_formatted_with_units() -> None:
    assert (quantity(98.2, "%"), quantity(1.25e9, "B/s"), quantity(3.0, "")) == ("98 %", "1.25 GB/s", "3")
    assert (share(1.0, 4.0), share(None, 4.0), share(1.0, 0.0)) == ("25 %", "", "")


@pytest.mark.parametrize("unit", ["B", "B/s"])
def test_formatted_size_fits_its_column(unit: Any) -> None:
    """150 bytes/s once overlapped the preceding number, and 1000 kB/s was formatted as 1e+03 kB/s."""
    room = min(width for _, names, width in NODE_COLUMNS if _UNITS.get(names[0]) == unit)
    for size in (0, 9.994, 150, 999.4, 999.6, 999_499, 999_600, 123.4e6, 999.6e6, 999.6e9):
        assert len(quantity(size, unit)) < room and "e+" not in quantity(size, unit), size


# What pools say to what stands left of an operator, or is given to a verb, and is no call.


@sky.function
def f(x: int = 1) -> int:
    return x


POOLS: list[Any] = [sky.Compute(provider=sky.Local(), name="right"), sky.sky]


@pytest.mark.parametrize("pool", POOLS, ids=["pool", "current pool"])
@pytest.mark.parametrize(
    "left", [None, {"loss": 1}, 3, numpy.zeros(2), numpy.float64(3), lambda: 0], ids=lambda left: type(left).__name__
)
def test_operator_refuses_a_left_operand_that_is_not_a_call(pool: Any, left: Any) -> None:
    for sign, operate in {">>": lambda: left >> pool, "@": lambda: left @ pool, ">": lambda: left > pool}.items():
        with pytest.raises(TypeError, match=f"^the left operand of {sign} must be a call of a @sky.function"):
            operate()


def test_operators_refuse_lists_and_groups_of_calls() -> None:
    pool: Any = POOLS[0]
    with pytest.raises(TypeError, match=r"^a list of calls cannot be run\. .*sky\.gather\(\*calls\) >> pool"):
        [f(1), f(2)] >> pool
    with pytest.raises(TypeError, match=r"^a group does not support this operator"):
        assert (f(1) & f(2)) > pool  # type: ignore[operator]


def test_operator_refuses_a_result_of_not_implemented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sky.Compute, "run_one", lambda self, pending: NotImplemented)
    with pytest.raises(TypeError, match=r"^f returned NotImplemented"):
        f() >> POOLS[0]


VERBS = ("run", "broadcast", "run_async", "start", "stream")


@pytest.mark.parametrize("verb", VERBS)
def test_verb_refuses_an_argument_that_is_not_a_call(verb: str) -> None:
    with pytest.raises(
        TypeError, match=rf"^compute\.{verb} takes a call, got a function\. .*compute\.{verb}\(f\(\.\.\.\)\)$"
    ):
        getattr(POOLS[0], verb)(f)
    with pytest.raises(TypeError, match=r"takes a call, f\(\.\.\.\)|^the left operand of >> must be a call"):
        getattr(POOLS[0], verb)(3)
    with pytest.raises(PoolError, match="not up"):
        getattr(POOLS[0], verb)(f())


def test_pool_cannot_be_pickled() -> None:
    for make in (pickle.dumps, cloudpickle.dumps):
        with pytest.raises(TypeError, match=r"^a pool cannot be sent to ranks"):
            make(POOLS[0])


@pytest.mark.parametrize("verb", ["gather", "gather_stream", "run_parallel"])
def test_group_verb_refuses_an_argument_that_is_not_a_group(verb: str) -> None:
    for wrong in (f, f(1), [f(1)]):
        with pytest.raises(TypeError, match=rf"^compute\.{verb} takes a group, sky\.gather"):
            getattr(POOLS[0], verb)(wrong)


# What terminals that show less are given: plain ASCII in as many cells, and no colours.

BLACK = Color(0, 0, 0)


@given(st.text())
def test_plain_ascii_keeps_the_width_of_any_text(text: str) -> None:
    plain = plain_ascii(text)
    assert plain.isascii() and "\x7f" not in plain
    printable = "".join(char for char in text if char.isprintable())
    assert cell_len(plain_ascii(printable)) == cell_len(printable)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("● up", "* up"), ("╭─ 2 Log ─╮", "+- 2 Log -+"), ("naïve Größe", "naive Gro?e"), ("日本 ok", "???? ok"),
        ("85 °C ±2 …", "85 oC ~2 ~"), ("Ａ", "A "),
    ],
)  # fmt: skip
def test_plain_ascii_keeps_similar_characters(text: str, plain: str) -> None:
    assert plain_ascii(text) == plain


def test_every_painted_character_has_a_plain_form() -> None:
    folders = (Path(skyward_tui.__file__).parent, Path(skyward_core.__file__).parent / "views")
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".tcss")]
    signs = {char for path in files for char in path.read_text("utf-8") if ord(char) > 0x7E}
    assert len(signs) > 30
    assert {char for char in signs if plain_ascii(char) == "?"} == set()


def test_state_glyphs_differ_in_plain_ascii() -> None:
    """In the grid of 256 ranks a glyph stands alone, so success and failure must differ without colour."""
    glyphs = {each.glyph for each in _STATE_STYLES.values()}
    assert len({plain_ascii(glyph) for glyph in glyphs}) == len(glyphs)
    ranks = ("waiting", "importing", "joining", "running", "paused", "returned", "raised", "lost", "collateral", "idle")
    assert len({state_style(state).glyph for state in ranks}) == len(ranks)
    for state, each in _STATE_STYLES.items():
        assert each.word and each.glyph, state
    for group in (("up", "degraded", "gone", "unreachable", "unfinished"), ("done", "failed", "cancelled", "running")):
        assert len({state_style(state).text for state in group}) == len(group)


def test_colour_remover_reverses_the_cursor_and_dims_grey() -> None:
    styles = {"plain": "", "state": "red bold", "cursor": "black on white", "muted": "bright_black"}
    segments = [Segment(name, Style.parse(style)) for name, style in styles.items()]
    painted = {text: style for text, style, _ in ColourRemover().apply([*segments, Segment("none")], BLACK)}
    assert painted["plain"] == Style()
    assert painted["state"] == Style(bold=True)
    assert painted["cursor"] == Style(reverse=True)
    assert painted["muted"] == Style(dim=True)
    assert painted["none"] is None
