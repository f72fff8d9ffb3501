"""Whoever misbehaves on the other side of a connection hurts nobody else, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core import events as ev
from skyward_core.content import name_of
from skyward_core.ledger import Ledger
from skyward_core.wire import Decoder, frame
from tests.local.cli import Cli
from tests.local.faults import agent_pids, on_loop, wait_until

QUIET = sky.Options(console=False, grace=2.0)


@sky.function
def rank() -> int:
    return sky.instance_info().rank


@pytest.fixture
def pool(home: Path) -> Iterator[sky.Compute]:
    with sky.Compute(nodes=2, options=QUIET) as compute:
        assert rank() @ compute == [0, 1]
        yield compute


def test_a_node_that_misbehaves_stops_neither_its_client_nor_the_next_run(pool: sky.Compute) -> None:
    folder = pool.pool.archive.folder
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.suffix in (".out", ".err")}
    outcome = {"t": "outcome", "run": "another", "i": 0, "rank": 1, "node": 1, "kind": "returned"}
    downs: list[str] = []

    def note(event: ev.Event) -> None:
        if isinstance(event, ev.NodeLink) and not event.up:
            downs.append(event.detail)

    on_loop(lambda: pool.pool.subscribe(note, None))
    for header, body in (
        ({"t": "log", "f": "r0./../../../x", "at": 0}, b"evil"),
        ({"t": "log", "f": "r000.out", "at": 0}, b"of another node's rank\n"),
        (outcome | {"rank": 0}, b"x"),
        (outcome | {"node": 0}, b"x"),
        (outcome | {"log": {"../../x": [0, 9]}}, b"x"),
        (outcome | {"i": -1}, b""),
        ({"t": "began", "run": "another"}, b""),
        ({"t": "welcome", "version": 3, "runs": [7]}, b""),
        ({"t": "ending"}, b""),
    ):
        link = pool.pool.links[1]
        wait_until(lambda: link.up)  # noqa: B023
        on_loop(lambda: link._data(frame(header, body)))  # noqa: B023  as if its agent had sent that
        wait_until(lambda: downs, what=str(header))
        assert "of a frame" in downs[0] or "as if it were its own" in downs[0]
        downs.clear()
        assert rank() @ pool == [0, 1]
    assert {path: path.read_bytes() for path in before} == before
    assert not list(folder.rglob("x"))
    assert "another" not in pool.pool.view.runs or not pool.pool.view.runs["another"].tasks


def memory(pid: int) -> float:
    """Megabytes of a process in memory."""
    status = Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2]
    return int(status.split()[0]) / 1024


def ask(path: Path, header: dict[str, Any], body: bytes = b"") -> dict[str, Any]:
    """Send a frame over a connection of its own; the first that comes back."""
    decoder = Decoder()
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(str(path))
        client.sendall(frame(header, body))
        while data := client.recv(1 << 16):
            for found, _ in decoder.feed(data):
                return found
    return {}


def test_an_agent_keeps_nothing_of_frames_that_are_none(pool: sky.Compute) -> None:
    path, (pid, *_) = pool.pool.links[0].transport.socket, agent_pids(pool)  # type: ignore[attr-defined]
    blob = [name_of(b""), 0]
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


def test_what_is_wrong_with_one_pool_ends_no_listing_and_no_teardown_of_others(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("broken", "good"):
        cli("run", "endings.py:fine", "--pool", name, "--keep")
    monkeypatch.setenv("SKYWARD_HOME", cli.env["SKYWARD_HOME"])
    ledger = Ledger()
    row = ledger.find("broken")
    assert row is not None
    (Path(cli.env["SKYWARD_HOME"]) / "pools" / row.key / "logs" / "x").write_text(
        "a release before this put it there"
    )
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
