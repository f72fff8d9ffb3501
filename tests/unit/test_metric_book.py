"""The client's side of ``sky.log``: latest values, bounded histories, whatever pieces the bytes come in."""

import itertools
import json
import random

from skyward_core.model.outcomes import Summary
from skyward_core.views import events
from skyward_core.views.pool_view import PoolView, apply
from skyward_core.views.rank_metrics import (
    MAX_NAMES,
    MAX_POINTS,
    MAX_RUNS,
    PACE_SIZE,
    MetricStore,
    format_metrics,
)


def line(run: str, at: float, **values: float) -> bytes:
    return json.dumps({"at": at, "run": run, "values": values}).encode() + b"\n"


def test_bytes_may_come_in_any_pieces_and_from_several_files_of_a_rank():
    book = MetricStore()
    first = b'7, "values": {}}\n' + line("r1", 1.0, loss=2.5, step=1) + line("r1", 2.0, loss=1.5)
    other = line("r2", 1.0, loss=float("nan"), step=9)
    for i in range(max(len(first), len(other))):
        book.feed("r000.metrics", 0, first[i : i + 1])
        book.feed("r000.1.metrics", 0, other[i : i + 1])
    assert book.latest("r1", 0) == {"loss": 1.5, "step": 1}
    assert book.history("r1", 0, "loss") == [(1.0, 2.5), (2.0, 1.5)]
    assert book.latest("r2", 0)["step"] == 9
    assert (book.ranks("r1"), book.latest("r1", 1), book.history("r3", 0, "loss")) == ([0], {}, [])


def test_a_long_history_is_thinned_evenly_and_keeps_its_beginning_and_newest_value():
    book = MetricStore()
    for step in range(10 * MAX_POINTS):
        book.add_values("r", 0, float(step), {"step": step})
        assert len(book.history("r", 0, "step")) <= MAX_POINTS
    points = book.history("r", 0, "step")
    assert points[0] == (0.0, 0.0)
    assert {b[0] - a[0] for a, b in itertools.pairwise(points)} == {16.0}
    assert len(points) > MAX_POINTS // 2
    assert book.latest("r", 0) == {"step": 10 * MAX_POINTS - 1}


def test_names_and_runs_are_bounded():
    book = MetricStore()
    for run in range(2 * MAX_RUNS):
        book.add_values(f"r{run}", 0, 0.0, {f"n{i}": i for i in range(MAX_NAMES + 9)})
    assert book.latest("r0", 0) == {}
    assert len(book.latest(f"r{2 * MAX_RUNS - 1}", 0)) == MAX_NAMES
    assert len(book.latest(f"r{MAX_RUNS}", 0)) == MAX_NAMES


def test_dicts_of_numbers_that_a_generator_yields_are_numbers_too():
    view = PoolView("p")
    apply(view, events.PoolOpened(pool="p", spec={"nodes": 2, "worker": {"ranks_per_node": 1}}, created_at=0.0))
    apply(view, events.RunOpened(pool="p", run="r", function="f", kind="broadcast", total=2, at=0.0))
    for seq, value in enumerate([{"epoch": 1, "loss": 0.5, "name": "a", "ok": True}, {"epoch": 2}, 7]):
        told = Summary(type=type(value).__name__, text="", json=value, is_json=True, size=1)
        apply(view, events.ItemYielded(pool="p", run="r", index=1, rank=1, seq=seq, summary=told))
    assert view.metrics.latest("r", 1) == {"epoch": 2, "loss": 0.5}
    assert view.metrics.ranks("r") == [1]


def test_numbers_in_a_line():
    values = {"step": 1234.0, "loss": 2.31449, "lr": 3e-5, "x": float("nan"), "y": float("inf")}
    assert format_metrics(values) == "step 1,234  loss 2.314  lr 3e-05  x nan  y inf"


def test_what_a_rank_wrote_to_its_file_itself_may_be_anything() -> None:
    book, good = MetricStore(), b'{"run": "r", "at": 17.5, "values": {"loss": 1.0}}'

    def but(part: bytes, other: bytes) -> bytes:
        return good.replace(part, other)

    odd = [
        b"nonsense", b"[" * 5000, b'{"run": "r"}', but(b"17.5", b"1e400"), but(b"17.5", b"NaN"), but(b"17.5", b"-3"),
        but(b"17.5", b"1" + b"0" * 400), but(b'{"loss": 1.0}', b"[[7, 2.0]]"), but(b"1.0", b"1" + b"0" * 400),
        but(b"1.0", b"NaN"), but(b"loss", b"\\u001b]0;t\\u0007"),
    ]  # fmt: skip
    for line in [*odd, good]:
        book.feed("r000.metrics", 0, line + b"\n")
    assert [
        point for name in book.latest("r", 0) for point in book.history("r", 0, name) if not 0 <= point[0] < 99
    ] == []
    assert book.history("r", 0, "loss")[-1] == (17.5, 1.0)
    assert set(book.latest("r", 0)) == {"loss", "7", ""}


def odd_ranks(values: list[list[float]]) -> list[int]:
    """Who is far from the others, where each rank has sent such values."""
    book = MetricStore()
    for rank, sent in enumerate(values):
        for place, value in enumerate(sent):
            book.add_values("r", rank, float(place), {"loss": value})
    return book.outlier_ranks("r", "loss")


def test_a_rank_is_odd_by_its_last_values_and_not_before_there_are_enough_of_them() -> None:
    alike = [[1.0] * PACE_SIZE for _ in range(4)]
    assert odd_ranks([*alike, [9.0] * (PACE_SIZE - 1)]) == []
    assert odd_ranks([*alike, [9.0] * PACE_SIZE]) == [4]
    assert odd_ranks([*alike, [1.0] * PACE_SIZE + [9.0]]) == [], "one hiccup"
    assert odd_ranks([*alike, [1.0] * PACE_SIZE + [9.0] * PACE_SIZE]) == [4]
    assert odd_ranks([*alike, [9.0] * PACE_SIZE + [1.0] * PACE_SIZE]) == [], "it was"


def test_noise_is_not_odd() -> None:
    """Of four that are alike one is far from the others by its deviation every seventh time."""
    rng, many = random.Random(7), 400
    noisy = [[[rng.gauss(1.0, 0.3) for _ in range(PACE_SIZE)] for _ in range(4)] for _ in range(many)]
    assert sum(map(bool, map(odd_ranks, noisy))) < many / 50
    apart = [[*ranks[:3], [value + 3.0 for value in ranks[3]]] for ranks in noisy]
    assert sum(odd_ranks(ranks)[:1] == [3] for ranks in apart) > many * 0.9


def test_a_number_that_is_none_is_told_at_once_and_until_one_comes() -> None:
    alike = [[1.0] * PACE_SIZE for _ in range(4)]
    assert odd_ranks([*alike, [float("nan")]]) == [4]
    assert odd_ranks([*alike, [1.0] * PACE_SIZE + [float("inf")]]) == [4]
    assert odd_ranks([*alike, [float("nan"), 1.0]]) == []
