"""What asks EC2's metadata service whether the machine is taken back: the program itself, before a service that may be
broken in any way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty, Queue
from typing import Any

import pytest

from skyward_core.model.machines import Machine
from skyward_core.providers.aws import instance_lookup_and_end, spot_interruption_watcher
from tests.support.waiting import wait_until

NOW = 1_800_000_000.0  # by the service's clock, which is nobody else's
SOON = "2027-01-15T08:02:00Z"  # two minutes later
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


class Service:
    """A metadata service.

    Attributes:
        says: what it answers to whom has a token, by path; 404 to the rest.
        tokens: those that are good; each is told once.
        status: that it answers everything with, where it is set.
    """

    def __init__(self) -> None:
        self.says: dict[str, bytes] = {}
        self.tokens: list[str] = []
        self.asked = 0
        self.status = 0
        self.hangs = threading.Event()
        self.hangs.set()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                lives = self.headers["X-aws-ec2-metadata-token-ttl-seconds"] == "21600"
                if self.path == "/latest/api/token" and lives:
                    service.tokens.append(f"token-{service.asked}")
                    self.answer(200, service.tokens[-1].encode())
                else:
                    self.answer(400)

            def do_GET(self) -> None:
                service.asked += 1
                service.hangs.wait(30)
                if self.headers["X-aws-ec2-metadata-token"] not in service.tokens:
                    self.answer(401)
                elif (said := service.says.get(self.path)) is None:
                    self.answer(404)
                else:
                    self.answer(200, said)

            def answer(self, status: int, body: bytes = b"") -> None:
                self.send_response_only(service.status or status)
                self.send_header("Date", formatdate(NOW, usegmt=True))
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.hangs.set()
        self._server.shutdown()
        self._server.server_close()


class Asking:
    """The program, in less of a hurry to give up and in more of one to look again."""

    def __init__(self, endpoint: str, **numbers: float) -> None:
        text = spot_interruption_watcher.read_program()
        for name, number in ({"POLL_INTERVAL": 0.01, "READ_TIMEOUT": 0.2} | numbers).items():
            head, found, rest = text.partition(f"\n{name} = ")
            assert found, name
            text = f"{head}{found}{number}\nWAS = {rest}"
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ
            | {spot_interruption_watcher.ENDPOINT_VARIABLE: endpoint, "http_proxy": "http://127.0.0.1:9"},
        )
        self._said: Queue[dict[str, Any]] = Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._said.put(json.loads(line))

    def next(self) -> dict[str, Any]:
        return self._said.get(timeout=30)

    def said_nothing(self) -> bool:
        try:
            self._said.get_nowait()
        except Empty:
            return True
        return False

    def end(self) -> int:
        """Its input ends, and so it does."""
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.close()
        status = self.ended()
        self._child.stdout.close()
        return status

    def ended(self) -> int:
        return self._child.wait(30)


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.close()


def looked(service: Service, times: int = 3) -> None:
    """That often since now, each with two questions."""
    until = service.asked + 2 * times
    wait_until(lambda: service.asked >= until)


def test_a_notice_is_told_once_with_what_is_left_by_the_service_s_clock(service: Service) -> None:
    asking = Asking(service.endpoint)
    looked(service)
    assert asking.said_nothing()
    service.says[REBALANCE] = b'{"noticeTime": "2027-01-15T08:00:00Z"}'
    assert asking.next() == {"kind": "rebalance", "left": None}
    service.says[ACTION] = json.dumps({"action": "terminate", "time": SOON}).encode()
    assert asking.next() == {"kind": "terminate", "left": 120.0}
    looked(service)
    assert asking.said_nothing() and len(service.tokens) == 1
    # The service was started anew: it knows no token.
    service.tokens.clear()
    service.says[ACTION] = json.dumps({"action": "hibernate", "time": "2027-01-15T07:59:00Z"}).encode()
    assert asking.next() == {"kind": "hibernate", "left": 0.0}
    assert len(service.tokens) == 1
    assert asking.end() == 0


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 4000,
        b"\xff\x00\x1b]0;owned\x07",
        b'{"action": "explode", "time": "2027-01-15T08:02:00Z"}',
        b'{"action": ["terminate"], "time": "2027-01-15T08:02:00Z"}',
        b'{"action": "terminate", "time": "soon"}',
        b'{"action": "terminate", "time": 7}',
        b'{"action": "terminate", "time": "2027-01-15T08:02:00Z"}' + b" " * 5000,
    ],
    ids=range(10),
)
def test_what_is_no_notice_is_none_and_said_so_once(service: Service, said: bytes) -> None:
    service.says[ACTION] = said
    asking = Asking(service.endpoint)
    told = asking.next()
    assert told.keys() == {"error"} and "the metadata service" in told["error"] and len(told["error"]) <= 200
    looked(service, 10)
    assert asking.said_nothing()
    service.says[ACTION] = json.dumps({"action": "stop", "time": SOON}).encode()
    assert asking.next() == {"kind": "stop", "left": 120.0}
    assert asking.end() == 0


def test_a_service_that_fails_or_hangs_is_asked_again(service: Service) -> None:
    service.status = 503
    service.says[ACTION] = json.dumps({"action": "terminate", "time": SOON}).encode()
    asking = Asking(service.endpoint)
    assert asking.next() == {"error": "the metadata service answers 503 to who asks for a token"}
    service.status = 0
    assert asking.next()["kind"] == "terminate"
    service.hangs.clear()
    assert asking.next() == {"error": "the metadata service cannot be asked: timed out"}
    service.hangs.set()
    assert asking.end() == 0


@pytest.mark.parametrize(
    ("state", "code", "preempted"),
    [
        ("shutting-down", "Server.SpotInstanceTermination", True),
        ("terminated", "Server.SpotInstanceTermination", True),
        ("terminated", "Client.UserInitiatedShutdown", False),
        ("terminated", "Client.InstanceInitiatedShutdown", False),
    ],
)
def test_ec2_says_of_a_machine_that_it_took_it_back(state: str, code: str, preempted: bool) -> None:
    machine = Machine("i-1", 0, "h", "h", extra={"launched": time.time()})
    seen = instance_lookup_and_end._update_state(machine, {"State": {"Name": state}, "StateReason": {"Code": code}})
    assert seen.extra.get("preempted") == (f"EC2 took it back ({code})" if preempted else None)
    assert bool(seen.extra["why"]) is (code == "Client.InstanceInitiatedShutdown"), "that may end a whole pool"


def test_who_answers_byte_by_byte_without_end_costs_the_look(service: Service) -> None:
    """The agent starts the program anew."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as drips:

        def drip() -> None:
            connection, _ = drips.accept()
            with connection:
                while True:
                    try:
                        connection.sendall(b"H")
                    except OSError:
                        return
                    time.sleep(0.05)

        threading.Thread(target=drip, daemon=True).start()
        port = drips.getsockname()[1]
        assert Asking(f"127.0.0.1:{port}", POLL_TIMEOUT=1).ended() == -14
    assert Asking("http://127.0.0.1:1", FAILURES_BEFORE_REPORT=1).next()["error"].endswith("Connection refused")
