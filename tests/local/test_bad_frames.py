"""Invalid and forged frames of nodes and clients."""

from __future__ import annotations

import json
import os
import pickle
import socket
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.pool.runs.run import Run
from skyward_core.protocol.frame_codec import VERSION, Decoder, encode_frame
from skyward_core.protocol.frame_schemas_and_size_limits import validate_agent_frame
from skyward_core.store.ledger import Ledger
from skyward_core.util.content_hash import hash_bytes
from skyward_core.views import events
from tests.support.cli import Cli
from tests.support.faults import agent_pids, on_loop
from tests.support.sample_frames import BEGAN, LOG, OUTCOME, RECORD, SUMMARY, WELCOME
from tests.support.waiting import wait_until

QUIET = sky.Options(console=False, grace=2.0)


@sky.function
def rank() -> int:
    return sky.instance_info().rank


@sky.function
def wait_for(path: str) -> None:
    while not os.path.exists(path):  # noqa: PTH110
        time.sleep(0.02)


class Deaf:
    """Connection that discards all data."""

    def write(self, data: bytes) -> None:
        return None

    def close(self) -> None:
        return None


@pytest.fixture
def pool(home: Path) -> Iterator[sky.Compute]:
    with sky.Compute(nodes=2, options=QUIET) as compute:
        assert rank() @ compute == [0, 1]
        yield compute


def test_invalid_frames_of_a_node_harm_neither_client_nor_next_run(pool: sky.Compute) -> None:
    folder = pool.pool.archive.folder
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.suffix in (".out", ".err")}
    outcome = {"t": "outcome", "run": "another", "i": 0, "rank": 1, "node": 1, "kind": "returned"}
    downs: list[str] = []

    def note(event: events.Event) -> None:
        if isinstance(event, events.NodeLink) and not event.up:
            downs.append(event.detail)

    on_loop(lambda: pool.pool.news.subscribe(note, None))
    for header, body in (
        ({"t": "log", "f": "r0./../../../x", "at": 0}, b"evil"),
        ({"t": "log", "f": "r000.out", "at": 0}, b"of another node's rank\n"),
        (outcome | {"rank": 0}, b"x"),
        (outcome | {"node": 0}, b"x"),
        (outcome | {"log": {"../../x": [0, 9]}}, b"x"),
        (outcome | {"i": -1}, b""),
        ({"t": "began", "run": "another"}, b""),
        ({"t": "welcome", "version": VERSION, "runs": [7]}, b""),
        ({"t": "ending"}, b""),
    ):
        link = pool.pool.links[1]
        wait_until(lambda: link.up)  # noqa: B023
        on_loop(lambda: link._on_data(encode_frame(header, body)))  # noqa: B023  as if its agent had sent that
        wait_until(lambda: downs, what=str(header))
        assert "of frame" in downs[0] or "of another node" in downs[0]
        downs.clear()
        assert rank() @ pool == [0, 1]
    assert {path: path.read_bytes() for path in before} == before
    assert not list(folder.rglob("x"))
    assert "another" not in pool.pool.view.runs or not pool.pool.view.runs["another"].tasks


def test_welcome_claiming_ranks_of_another_node_is_rejected(pool: sky.Compute) -> None:
    link, downs = pool.pool.links[1], []
    greet = link._on_welcome
    forged = RECORD | {"run": "another", "began": [], "outcomes": [OUTCOME | {"run": "another"}]}  # of rank 0

    def lie(header: Any) -> None:
        greet(header | {"runs": [forged]})

    def note(event: events.Event) -> None:
        if isinstance(event, events.NodeLink) and not event.up:
            downs.append(event.detail)

    def drop() -> None:
        pool.pool.news.subscribe(note, None)
        link._on_welcome = lie  # type: ignore[method-assign]
        assert link._pipe is not None
        link._pipe.close()

    on_loop(drop)
    wait_until(lambda: any("of another node" in detail for detail in downs), what="that it is refused")
    assert "another" not in pool.pool.view.runs
    link._on_welcome = greet  # type: ignore[method-assign]
    wait_until(lambda: link.up and not link.is_reconnecting, what="its next, honest greeting")
    assert rank() @ pool == [0, 1]


NO_VALUES: list[Any] = [
    None, True, -1, 1 << 60, 1e308, float("nan"), "x", "\x1b]0;x\x07", "../../x", [], [[0]], {"a": 1}, [{"rank": 0}],
    [{"t": []}],
]  # fmt: skip
GOOD: list[dict[str, Any]] = [
    WELCOME, OUTCOME, BEGAN, LOG, {"t": "run"} | RECORD,
    {"t": "data", "id": 1, "last": True}, {"t": "stale", "run": "r", "i": 0},
    {"t": "item", "run": "r", "i": 0, "rank": 0, "seq": 0, "summary": SUMMARY},
    {"t": "gang", "epoch": 1, "broken": ""}, {"t": "phase", "rank": 0, "phase": "", "age": 1.0},
    {"t": "granted", "unclean": False}, {"t": "held", "by": ""}, {"t": "pong", "lease": None},
    {"t": "known", "id": 1}, {"t": "formed", "id": 1, "head_addr": "", "head_port": 1},
]  # fmt: skip
MORE = {"at", "now", "begun", "id", "i", "items", "why", "log", "last", "file", "phases", "unfetched"}


def test_invalid_frame_keys_raise_nothing_on_the_client_loop(
    pool: sky.Compute, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ours = tmp_path / "ours"
    running = wait_for(str(ours)) > pool
    wait_until(lambda: pool.pool.context.registry.runs)
    link, run = pool.pool.links[0], next(iter(pool.pool.context.registry.runs))
    upset: list[tuple[dict[str, Any], str]] = []

    def say(header: dict[str, Any]) -> None:
        link._decoder = Decoder(validate_agent_frame)
        link._pending_requests[1] = "where", link.loop.create_future()
        try:
            link._on_data(encode_frame(header))
        except Exception as error:  # noqa: BLE001  whatever it is, it is what the test looks for
            upset.append((header, repr(error)))

    def not_begun(work: Coroutine[Any, Any, None]) -> None:
        work.close()
        pool.pool.context.registry.runs[run]._fetching.clear()

    def say_all() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(link, "_pipe", Deaf())
            patch.setattr(pool.pool.context.background, "spawn", not_begun)
            for name in ("_on_call_end", "_check_end", "_stop"):  # what is no nonsense ends nothing here
                patch.setattr(Run, name, lambda *_, **__: None)
            for good in GOOD:
                for key in {*good, *MORE} - {"t"}:
                    for of in {good.get("run", ""), run} if "run" in good else [""]:
                        base = good | {"run": of} if of else good
                        for value in NO_VALUES:
                            say(base | {key: value})
                        say({name: value for name, value in base.items() if name != key})
        mine = pool.pool.context.registry.runs[run]
        mine._stale.clear()
        mine.values.clear()
        link._pending_requests.clear()
        link._decoder, link._protocol_error = Decoder(validate_agent_frame), None

    on_loop(say_all)
    assert upset == []
    ours.touch()
    assert running.result(60) is None
    assert rank() @ pool == [0, 1]


def test_outcome_forged_by_another_node_is_ignored(pool: sky.Compute, tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(lambda: wait_for(str(ours)) @ pool)
        wait_until(lambda: pool.pool.context.registry.runs)
        run = next(iter(pool.pool.context.registry.runs))
        wait_until(lambda: len(pool.pool.context.registry.runs[run]._where) == 2)
        header = {"t": "outcome", "run": run, "i": 0, "rank": 1, "node": 1, "kind": "returned"}
        on_loop(lambda: pool.pool.links[1]._on_data(encode_frame(header, pickle.dumps("forged"))))
        wait_until(lambda: pool.pool.links[1].up)
        ours.touch()
        assert running.result(60) == [None, None]


def memory(pid: int) -> float:
    """Return the memory of a process in megabytes."""
    status = Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2]
    return int(status.split()[0]) / 1024


def ask(path: Path, header: dict[str, Any], body: bytes = b"") -> dict[str, Any]:
    """Send a frame over a new connection, and return the first answer."""
    decoder = Decoder()
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(str(path))
        client.sendall(encode_frame(header, body))
        while data := client.recv(1 << 16):
            for found, _ in decoder.feed(data):
                return found
    return {}


@pytest.mark.proof("0.5 s of a processor")
def test_agent_keeps_no_memory_of_rejected_frames(pool: sky.Compute) -> None:
    path, (pid, *_) = pool.pool.links[0].transport.socket, agent_pids(pool)  # type: ignore[attr-defined]
    blob = [hash_bytes(b""), 0]
    call = {"t": "call", "run": "r", "fn": blob, "args": blob, "kind": "single"}
    body = os.urandom(40_000)
    before = memory(pid)
    for number in range(400):
        for wrong in ({"rank": 17}, {"gang": True}, {"i": "x"}, {"fn": None}):
            answer = ask(path, call | {"i": number} | wrong, body)
            assert answer["t"] == "error", answer
    assert memory(pid) - before < 8  # of 64 that came
    assert rank() @ pool == [0, 1]
    assert ask(path, {"t": "where", "id": 1})["runs"].keys().isdisjoint({"r"})  # no run holds up its lease


def test_damaged_pool_does_not_prevent_listing_or_teardown_of_others(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("broken", "good"):
        cli("run", "endings.py:fine", "--pool", name, "--keep")
    monkeypatch.setenv("SKYWARD_HOME", cli.env["SKYWARD_HOME"])
    ledger = Ledger()
    row = ledger.find_pool("broken")
    assert row is not None
    (Path(cli.env["SKYWARD_HOME"]) / "pools" / row.key / "logs" / "x").write_text("a release before this put it there")
    listed = cli.json("ls")["pools"]
    assert {pool["name"]: pool["state"] for pool in listed} == {"broken": "up", "good": "up"}
    provider = json.dumps(row.provider)
    ledger._db.execute(
        "UPDATE pools SET provider = ? WHERE token = ?", ('{"provider": "of another release"}', row.token)
    )
    ledger._db.commit()
    try:
        listed = cli.json("ls")["pools"]
        assert {pool["name"]: pool["state"] for pool in listed} == {"broken": "unreachable", "good": "up"}
        down = cli("down", "--all", "--yes", status=3)
        assert "pool broken could not be torn down" in down.stderr and "pool good is down" in down.stderr
    finally:
        ledger._db.execute("UPDATE pools SET provider = ? WHERE token = ?", (provider, row.token))
        ledger._db.commit()
        ledger.close()
    assert "pool broken is down" in cli("down", "broken", "--yes").stderr
