"""A record that is played: its clock, its view at each time of it, and the front that the app has of it."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from skyward_core.client.leftover_cleanup import LeftoverScan
from skyward_core.client.replay_session import FAILURE_LEAD, Playback, Replay, open_recording
from skyward_core.model.errors import UsageError
from skyward_core.model.outcomes import ErrorInfo, Outcome
from skyward_core.store.recording_file import RecordingWriter
from skyward_core.views import events, recorded_events
from skyward_core.views.pool_view import PoolView
from tests.support.waiting import wait_until

START = 1_700_000_000.0
SPEC: dict[str, Any] = {"provider": "local", "nodes": 1, "worker": {"ranks_per_node": 2}}


class Wall:
    def __init__(self) -> None:
        self.at = 50.0

    def __call__(self) -> float:
        return self.at


def lines(second: int) -> bytes:
    return f"step {second}\n".encode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two minutes of a pool: one line a second and rank, and a failure after 90."""
    writer = RecordingWriter(tmp_path / "a.skyrec", {"pool": "p", "note": "of \x1b[2Jyesterday"})
    opened = events.PoolOpened(pool="p", at=START, spec=SPEC, created_at=START)
    run = events.RunOpened(pool="p", at=START + 1, run="r1", function="train", kind="broadcast", total=2)
    for event in (opened, events.PoolState(pool="p", at=START + 0.5, state="up"), run):
        writer.put(recorded_events.event_entry(event))
    for second in range(2, 120):
        for rank in range(2):
            writer.put(recorded_events.log_entry(START + second, f"r00{rank}", "out", "r1", lines(second)))
        if second == 90:
            outcome = Outcome(1, 1, 0, "raised", 88.0, error=ErrorInfo("ValueError", "no"))
            writer.put(
                recorded_events.event_entry(events.RankEnded(pool="p", at=START + 90, run="r1", outcome=outcome))
            )
    writer.put({"at": START + 120, "k": "of the future"})
    writer.close()
    return tmp_path / "a.skyrec"


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def playback(path: Path, wall: Wall) -> Playback:
    return Playback(open_recording(path), wall)


def shown(view: PoolView) -> list[str]:
    ring = view.logs.for_run("r1").rank(0)
    return ring.lines(0, ring.end)


def test_its_time_goes_on_as_ours_does_at_its_speed_and_ends_with_the_record(playback: Playback, wall: Wall) -> None:
    assert playback.now() == START
    wall.at += 10
    assert playback.now() == START + 10
    assert playback.multiply_speed(4) == 4
    wall.at += 5
    assert playback.now() == START + 30
    for _ in range(9):
        playback.multiply_speed(2)
    assert playback.state().speed == 64
    playback.toggle()
    wall.at += 100
    assert playback.now() == START + 30 and not playback.state().playing
    playback.toggle()
    for _ in range(9):
        playback.multiply_speed(0.5)
    assert playback.state().speed == 0.25
    wall.at += 4
    assert playback.now() == START + 31
    wall.at += 10_000
    assert playback.now() == START + 120 and not playback.state().playing
    playback.toggle()
    assert playback.now() == START and playback.state().playing, "from the beginning again"


def test_the_view_is_what_it_was_then_wherever_one_comes_from(playback: Playback, wall: Wall) -> None:
    playback.seek(START + 10)
    playback.advance()
    assert shown(playback.view) == [f"step {second}" for second in range(2, 11)]
    playback.skip(60)
    playback.advance()
    later = playback.view
    assert len(shown(later)) == 69
    playback.skip(-60)
    assert playback.state().behind and playback.displayed_time() == START + 70, "until it is there"
    playback.advance()
    assert playback.displayed_time() == START + 10
    assert len(shown(playback.view)) == 9 and len(shown(later)) == 69, "the one before is left as it was"
    assert not playback.state().behind
    playback.skip(-1000)
    playback.advance()
    assert playback.now() == START and not playback.view.runs
    playback.skip(1000)
    playback.advance()
    assert playback.now() == START + 120 and playback.skipped_count == 1
    assert playback.view.runs["r1"].counts == {"raised": 1}


def test_it_stops_shortly_before_the_failure(playback: Playback) -> None:
    assert playback.seek_failure()
    playback.advance()
    now = playback.state()
    assert now.now == START + 90 - FAILURE_LEAD and not now.playing
    assert playback.view.runs["r1"].counts == {}


def test_where_nothing_failed_it_says_so(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "b", {"pool": "p"})
    writer.put(recorded_events.event_entry(events.PoolState(pool="p", at=START, state="up")))
    writer.close()
    playback = Playback(open_recording(tmp_path / "b"))
    assert not playback.seek_failure() and playback.state().failure is None


def test_a_record_of_nothing_is_refused(tmp_path: Path) -> None:
    RecordingWriter(tmp_path / "b", {}).close()
    with pytest.raises(UsageError, match=r"nothing that could be played$"):
        Playback(open_recording(tmp_path / "b"))


def test_the_view_follows_the_clock_by_itself(path: Path) -> None:
    playback = Playback(open_recording(path))
    front = Replay(playback)
    try:
        playback.seek(START + 5)
        wait_until(lambda: len(shown(front.pools()[0])) >= 4)
        playback.multiply_speed(64)
        wait_until(lambda: playback.view.runs["r1"].counts == {"raised": 1})
        playback.seek(START + 5)
        playback.toggle()
        wait_until(lambda: playback.view.runs["r1"].counts == {})
    finally:
        front.detach()


def test_a_record_of_centuries_is_played_like_any_other(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "b", {"pool": "p"})
    for at in (1.0, 6e10):
        writer.put(recorded_events.event_entry(events.PoolState(pool="p", at=at, state="up" if at > 1 else "starting")))
    writer.close()
    playback = Playback(open_recording(tmp_path / "b"))
    playback.start()
    wait_until(lambda: playback.view.version == 1)
    playback.seek(6e10)
    wait_until(lambda: playback.view.state == "up")
    playback.close()


def test_a_record_that_was_cut_off_says_so_and_its_words_are_harmless(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-10] + b"")
    with pytest.raises(UsageError, match="could be played: it was cut off"):
        Playback(open_recording(path))  # one block only, and that is gone
    path.write_bytes(data + b"blk1")
    playback = Playback(open_recording(path))
    front = Replay(playback)
    assert "the record was cut off" in front.notice and "\x1b" not in front.notice
    front.detach()


def test_what_needs_a_pool_is_refused_in_words(playback: Playback) -> None:
    front = Replay(playback)
    begun: Future[PoolView] = Future()
    nothing: Any = None
    asked: list[Future[Any]] = [
        front.create(nothing, begun=begun), begun, front.launch("p", nothing), front.load_launch("r1"),
        front.save_launch("p", "r1", nothing, joined=False), front.wait("p", "r1"), front.cancel("p", "r1"),
        front.stacks("p"), front.profile("p", 0, 1.0), front.fetch_files("p"),
        front.unfetched_files("p"), front.tear_down("p"), front.raise_budget("p", 1.0),
        front.remove_leftovers(LeftoverScan()),
    ]  # fmt: skip
    for future in asked:
        with pytest.raises(UsageError, match="this is a replay of a record"):
            future.result(10)
    with pytest.raises(UsageError, match="this is a replay of a record"):
        front.run_logs("r1")
    assert front.scan_leftovers().result(10).found == LeftoverScan().found
    assert front.files("p").result(10).files == []
    assert (
        front.load_ended_pool("p").result(10) is front.start_sampling("p").result(10) is front.refresh().result(10)[0]
    )
    front.detach()
