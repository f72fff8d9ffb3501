"""How often a node's agent is started anew."""

from __future__ import annotations

from skyward_core.pool.node_recovery import FAILURES, PAUSE, STARTS, WINDOW, Revivals


class Clock:
    """One that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_agents_that_die_again_and_again_are_followed_by_no_more() -> None:
    clock = Clock()
    revivals = Revivals(clock)
    for _ in range(STARTS):
        assert revivals.refused(0) == ""
        revivals.succeeded(0)
        clock.now += 1
    assert revivals.refused(0) == f"its agent died {STARTS + 1} times within {WINDOW:.0f} s"
    assert revivals.refused(1) == "", "another node has its own"
    clock.now = WINDOW
    assert revivals.refused(0) == "", "the first was long ago"


def test_a_start_that_fails_is_tried_again_after_a_pause_that_grows() -> None:
    clock = Clock()
    revivals = Revivals(clock)
    for n in range(FAILURES):
        assert revivals.refused(0) == ""
        assert revivals.is_due(0)
        revivals.failed(0, f"reason {n}")
        clock.now += PAUSE * 2**n - 0.01
        assert not revivals.is_due(0)
        clock.now += 0.01
    assert revivals.refused(0) == f"{FAILURES} attempts to start a new agent failed; the last: reason 3"


def test_an_agent_that_came_up_makes_the_failures_before_it_forgotten() -> None:
    clock = Clock()
    revivals = Revivals(clock)
    for _ in range(FAILURES - 1):
        revivals.failed(0, "killed")
    revivals.succeeded(0)
    assert revivals.is_due(0)
    revivals.failed(0, "killed")
    assert revivals.refused(0) == ""
