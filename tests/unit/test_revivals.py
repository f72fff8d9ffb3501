"""How often a node's agent is started anew."""

from __future__ import annotations

from skyward_core.pool.node_recovery import MAX_FAILURES, MAX_STARTS, PAUSE, RESTART_WINDOW, RestartLimiter


class Clock:
    """One that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_agents_that_die_again_and_again_are_followed_by_no_more() -> None:
    clock = Clock()
    revivals = RestartLimiter(clock)
    for _ in range(MAX_STARTS):
        assert revivals.refusal_reason(0) == ""
        revivals.add_success(0)
        clock.now += 1
    assert revivals.refusal_reason(0) == f"its agent died {MAX_STARTS + 1} times within {RESTART_WINDOW:.0f} s"
    assert revivals.refusal_reason(1) == "", "another node has its own"
    clock.now = RESTART_WINDOW
    assert revivals.refusal_reason(0) == "", "the first was long ago"


def test_a_start_that_fails_is_tried_again_after_a_pause_that_grows() -> None:
    clock = Clock()
    revivals = RestartLimiter(clock)
    for n in range(MAX_FAILURES):
        assert revivals.refusal_reason(0) == ""
        assert revivals.is_due(0)
        revivals.add_failure(0, f"reason {n}")
        clock.now += PAUSE * 2**n - 0.01
        assert not revivals.is_due(0)
        clock.now += 0.01
    assert revivals.refusal_reason(0) == f"{MAX_FAILURES} attempts to start a new agent failed; the last: reason 3"


def test_an_agent_that_came_up_makes_the_failures_before_it_forgotten() -> None:
    clock = Clock()
    revivals = RestartLimiter(clock)
    for _ in range(MAX_FAILURES - 1):
        revivals.add_failure(0, "killed")
    revivals.add_success(0)
    assert revivals.is_due(0)
    revivals.add_failure(0, "killed")
    assert revivals.refusal_reason(0) == ""
