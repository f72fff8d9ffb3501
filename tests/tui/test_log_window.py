"""The reader's place, filters and searches over a ring, without a terminal."""

from __future__ import annotations

from skyward_core.logs import LogRing
from skyward_tui.widgets.log_window import LogWindow, Matcher


def ring_of(count: int, capacity: int = 100) -> LogRing:
    ring = LogRing(capacity)
    ring.extend([f"line {i}" for i in range(count)])
    return ring


def numbers(lines: list[tuple[int, str]]) -> list[int]:
    assert all(text == f"line {number}" for number, text in lines)
    return [number for number, _ in lines]


def test_lines_around_a_place() -> None:
    window = LogWindow(ring_of(50))
    assert numbers(window.after(10, 3)) == [10, 11, 12]
    assert numbers(window.before(10, 3)) == [7, 8, 9]
    assert numbers(window.before(2, 5)) == [0, 1]
    assert numbers(window.after(48, 5)) == [48, 49]
    assert window.newer(47) == 2


def test_what_is_evicted_is_left_out() -> None:
    window = LogWindow(ring_of(250))
    assert window.first == 150
    assert numbers(window.after(0, 2)) == [150, 151]
    assert numbers(window.before(151, 5)) == [150]


def test_held_lines_outlive_the_ring() -> None:
    ring = ring_of(100)
    window = LogWindow(ring)
    window.hold()
    ring.extend([f"line {i}" for i in range(100, 500)])
    assert window.first == 0
    assert numbers(window.after(20, 3)) == [20, 21, 22]
    # Past what was held the reader goes on at the oldest line the ring has, and back again.
    assert numbers(window.after(98, 4)) == [98, 99, 400, 401]
    assert numbers(window.before(401, 3)) == [98, 99, 400]
    window.release()
    assert numbers(window.after(20, 1)) == [400]


def test_filter_keeps_up_and_inverts() -> None:
    ring = ring_of(30)
    window = LogWindow(ring)
    window.set_filter(Matcher.parse("line .*5$"))
    assert numbers(window.after(0, 9)) == [5, 15, 25]
    ring.extend([f"line {i}" for i in range(30, 40)])
    window.update()
    assert numbers(window.before(40, 2)) == [25, 35]
    assert window.newer(5) == 3
    window.set_filter(Matcher.parse("!5", invertible=True))
    assert numbers(window.after(4, 3)) == [4, 6, 7]


def test_filter_forgets_what_the_ring_forgot() -> None:
    ring = ring_of(0)
    window = LogWindow(ring)
    window.set_filter(Matcher.parse("line"))
    for start in range(0, 20_000, 50):
        ring.extend([f"line {i}" for i in range(start, start + 50)])
        window.update()
    assert window.filter is not None
    assert len(window.filter.numbers) < 5_000
    assert numbers(window.after(0, 1)) == [19_900]


def test_find_goes_round_both_ways() -> None:
    window = LogWindow(ring_of(30))
    window.set_search(Matcher.parse("7"))
    assert [window.find(n) for n in (0, 8, 18, 28)] == [7, 17, 27, 7]
    assert [window.find(n, backwards=True) for n in (29, 16, 6)] == [27, 7, 27]
    window.set_search(Matcher.parse("nowhere"))
    assert window.find(0) is None


def test_a_search_is_kind() -> None:
    small, capital = Matcher.parse("oom"), Matcher.parse("OOM")
    assert small is not None and capital is not None
    assert small.hits("CUDA OOM") and capital.hits("CUDA OOM") and not capital.hits("room")
    broken = Matcher.parse("a[b")
    assert broken is not None and broken.hits("x a[b y") and broken.spans("x a[b y") == [(2, 5)]
    assert Matcher.parse("") is None and Matcher.parse("!", invertible=True) is None
    colored = Matcher.parse("loss=2")
    assert colored is not None and colored.hits("\x1b[32mloss\x1b[0m=2")
