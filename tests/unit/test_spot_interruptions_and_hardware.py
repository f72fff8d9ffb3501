"""The program that polls the EC2 metadata service for interruption notices, also with a faulty service."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest

from skyward_core.model.machines_checks_and_gpu_use import Machine, MeasuredHardware, OrderedHardware, find_mismatch
from skyward_core.node.agent import agent_state_lease_deadman_and_network_info
from skyward_core.node.agent.agent_state_lease_deadman_and_network_info import DeadmanSwitch
from skyward_core.node.bootstrap import hardware_and_network_benchmark
from skyward_core.pool.startup_and_machine_verification import MachineVerifier, _parse_probe
from skyward_core.providers.aws import instance_metadata_preemption_poller, instances_and_leftovers
from skyward_core.transport.ssh import host_command_channel
from tests.support.waiting import wait_until

NOW = 1_800_000_000.0  # by the service's clock, which is nobody else's
SOON = "2027-01-15T08:02:00Z"  # two minutes later
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


class Service:
    """Metadata service.

    Attributes:
        says: Answers to requests with a token, by path; 404 for other paths.
        tokens: Valid tokens; each is issued once.
        status: Status of all answers if it is set.
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
                elif (text := service.says.get(self.path)) is None:
                    self.answer(404)
                else:
                    self.answer(200, text)

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
    """The program with shorter intervals and a longer patience."""

    def __init__(self, endpoint: str, **numbers: float) -> None:
        text = instance_metadata_preemption_poller.read_program()
        for name, number in ({"POLL_INTERVAL": 0.01, "READ_TIMEOUT": 0.2} | numbers).items():
            head, found, rest = text.partition(f"\n{name} = ")
            assert found, name
            text = f"{head}{found}{number}\nWAS = {rest}"
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ
            | {instance_metadata_preemption_poller.ENDPOINT_VARIABLE: endpoint, "http_proxy": "http://127.0.0.1:9"},
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
        """Close the program's input, which ends the program."""
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


def wait_for_looks(service: Service, times: int = 3) -> None:
    """Wait for a number of further polls, each with two requests."""
    until = service.asked + 2 * times
    wait_until(lambda: service.asked >= until)


def test_preemption_notice_is_reported_once_with_remaining_time(service: Service) -> None:
    asking = Asking(service.endpoint)
    wait_for_looks(service)
    assert asking.said_nothing()
    service.says[REBALANCE] = b'{"noticeTime": "2027-01-15T08:00:00Z"}'
    assert asking.next() == {"kind": "rebalance", "left": None}
    service.says[ACTION] = json.dumps({"action": "terminate", "time": SOON}).encode()
    assert asking.next() == {"kind": "terminate", "left": 120.0}
    wait_for_looks(service)
    assert asking.said_nothing() and len(service.tokens) == 1
    # The service was started anew: it knows no token.
    service.tokens.clear()
    service.says[ACTION] = json.dumps({"action": "hibernate", "time": "2027-01-15T07:59:00Z"}).encode()
    assert asking.next() == {"kind": "hibernate", "left": 0.0}
    assert len(service.tokens) == 1
    assert asking.end() == 0


@pytest.mark.parametrize(
    "output",
    [
        b"",
        b"{}",
        b"[" * 4000,
        b"\xff\x00\x1b]0;owned\x07",
        b'{"action": "explode", "time": "2027-01-15T08:02:00Z"}',
        b'{"action": ["terminate"], "time": "2027-01-15T08:02:00Z"}',
        b'{"action": "terminate", "time": "soon"}',
        b'{"action": "terminate", "time": "2027-01-15T08:02:00Z"}' + b" " * 5000,
    ],
    ids=range(8),
)
def test_invalid_metadata_answer_is_reported_once_as_an_error(service: Service, output: bytes) -> None:
    service.says[ACTION] = output
    asking = Asking(service.endpoint)
    answer = asking.next()
    assert answer.keys() == {"error"} and "metadata service" in answer["error"] and len(answer["error"]) <= 200
    wait_for_looks(service, 10)
    assert asking.said_nothing()
    service.says[ACTION] = json.dumps({"action": "stop", "time": SOON}).encode()
    assert asking.next() == {"kind": "stop", "left": 120.0}
    assert asking.end() == 0


def test_failing_or_hanging_metadata_service_is_polled_again(service: Service) -> None:
    service.status = 503
    service.says[ACTION] = json.dumps({"action": "terminate", "time": SOON}).encode()
    asking = Asking(service.endpoint)
    assert asking.next() == {"error": "the metadata service answered a token request with status 503"}
    service.status = 0
    assert asking.next()["kind"] == "terminate"
    service.hangs.clear()
    assert asking.next() == {"error": "cannot query the metadata service: timed out"}
    service.hangs.set()
    assert asking.end() == 0


@pytest.mark.parametrize(
    ("state", "code", "preempted"),
    [
        ("shutting-down", "Server.SpotInstanceTermination", True),
        ("terminated", "Client.UserInitiatedShutdown", False),
        ("terminated", "Client.InstanceInitiatedShutdown", False),
    ],
)
def test_ec2_state_reason_marks_a_machine_as_preempted(state: str, code: str, preempted: bool) -> None:
    machine = Machine("i-1", 0, "h", "h", extra={"launched": time.time()})
    seen = instances_and_leftovers._update_state(machine, {"State": {"Name": state}, "StateReason": {"Code": code}})
    assert seen.extra.get("preempted") == (f"EC2 took it back ({code})" if preempted else None)
    assert bool(seen.extra["why"]) is (code == "Client.InstanceInitiatedShutdown"), "that may end a whole pool"


def test_endless_metadata_answer_ends_the_program() -> None:
    """The agent restarts the program."""

    def drip(connection: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection.sendall(b"H")
                time.sleep(0.05)

    with neighbor(drip) as request:
        assert Asking(f"127.0.0.1:{request['port']}", POLL_TIMEOUT=1).ended() == -14
    assert Asking("http://127.0.0.1:1", FAILURES_BEFORE_REPORT=1).next()["error"].endswith("Connection refused")


# What was bought and what came: the verdict, what a host measures of itself, and what is made of it.

T4 = OrderedHardware("T4", 4, 16.0)


@pytest.mark.parametrize(
    ("arrived", "message"),
    [
        (MeasuredHardware(gpus=[("Tesla T4", 15.0)] * 4, disk=120.0), ""),
        (MeasuredHardware(gpus=[("Tesla T4", 15.0)] * 3), "it has 3 GPUs instead of 4 x T4 of 16 GB"),
        (
            MeasuredHardware(gpus=[*[("Tesla T4", 15.0)] * 3, ("Tesla T4", 8.0)]),
            "one of its GPUs has 8.0 GB, but 4 x T4 of 16 GB",
        ),
        (MeasuredHardware(gpus=None), ""),
        (MeasuredHardware(disk=4.2), "its disk writes 4.2 MB/s, less than the required 5 MB/s"),
    ],
)
def test_mismatch_with_ordered_hardware_names_the_measured_value(arrived: MeasuredHardware, message: str) -> None:
    assert find_mismatch(T4, arrived).startswith(message) and bool(find_mismatch(T4, arrived)) == bool(message)


def node_facts(**more: Any) -> Any:
    return {"gpus": [["T4\x1b[2J", 15360]], "tflops": 0, "disk": 9, "port": 1, "time": 50.0, "whys": {}} | more


def test_host_benchmark_output_is_sanitized_and_only_ordered_parts_count() -> None:
    found = _parse_probe(node_facts(whys={"matmul": "no\ttorch\x1b]0;x\x07"}), 40.0, T4)
    assert found.gpus is not None and str(found).isprintable() and len(found.gpus) == 1
    assert _parse_probe(node_facts(), 40.0, OrderedHardware()).gpus is None
    assert _parse_probe(node_facts(whys={"gpus": "there is no nvidia-smi", "disk": "full"}), 40.0, T4).gpus is None


@pytest.mark.parametrize(
    ("rates", "cut_off"),
    [
        ({0: 900.0, 1: 900.0, 2: 900.0}, set()),
        ({0: 900.0, 1: 0.0, 2: 0.0}, {2}),
        ({0: 0.0, 1: 900.0, 2: 900.0}, set()),
        ({0: 0.0, 1: 0.0}, set()),
        ({0: None, 1: 0.0, 2: 0.0, 3: 0.0}, set()),
    ],
)
def test_isolated_node_is_distinguished_from_a_blocked_network(
    rates: dict[int, float | None], cut_off: set[int]
) -> None:
    found = {node: MeasuredHardware(neighbour=(node + 1) % len(rates), rate=rate) for node, rate in rates.items()}
    assert MachineVerifier._find_isolated(None, found).keys() == cut_off  # type: ignore[arg-type]


def test_host_benchmark_measures_disk_and_transfer_to_neighbor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_and_network_benchmark, "DISK_BYTES", 8 << 20)
    monkeypatch.setattr(hardware_and_network_benchmark, "SEND_SECONDS", 0.1)
    monkeypatch.setenv("PATH", str(tmp_path))
    word = "0123456789abcdef" * 2
    request = {"gpus": True, "python": str(tmp_path / "none"), "address": "127.0.0.1", "word": word}
    found = hardware_and_network_benchmark.measure_host(tmp_path, request)
    host_command_channel.validate_task_result("probe", found | {"gpus": [list(each) for each in found["gpus"]]})
    assert found["disk"] > 0 and list(tmp_path.iterdir()) == [], "it leaves nothing"
    assert found["whys"]["gpus"] == "nvidia-smi is not installed" and "matmul" in found["whys"]
    assert abs(found["time"] - time.time()) < 60
    with socket.create_connection(("127.0.0.1", found["port"]), 5) as stranger:
        stranger.sendall(b"x" * len(word))
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(1) == b"", "who does not know the word is told nothing"
    sent = hardware_and_network_benchmark.measure_send({"address": "127.0.0.1", "port": found["port"], "word": word})
    host_command_channel.validate_task_result("send", sent)
    assert sent["rate"] > 0 and sent["why"] == ""


def test_disk_benchmark_file_is_unlinked_before_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[Path]] = []
    monkeypatch.setattr(hardware_and_network_benchmark, "DISK_BYTES", 1)
    monkeypatch.setattr(os, "fsync", lambda number: seen.append(list(tmp_path.iterdir())))
    speed, why = hardware_and_network_benchmark._measure_disk(tmp_path)
    assert speed > 0 and not why and seen == [[]]


@contextmanager
def neighbor(serve: Callable[[socket.socket], None]) -> Iterator[dict[str, Any]]:
    """Start a neighbor that serves one connection, and yield the request to send to it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            connection, _ = server.accept()
            with connection:
                serve(connection)

        threading.Thread(target=accept, daemon=True).start()
        yield {"address": "127.0.0.1", "port": server.getsockname()[1], "word": "w"}


def test_nvidia_smi_output_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_and_network_benchmark, "DRIVER_RETRY_DELAY", 60.0)
    monkeypatch.setattr(hardware_and_network_benchmark, "DRIVER", 0.005)
    program = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for script, found in (
        ("echo 'Tesla T4, 15360 MiB, 570.0'; echo 'Tesla T4, 15360 MiB, 570.0'", ([("Tesla T4", 15360.0)] * 2, "")),
        ("echo 'No devices were found'; exit 6", ([], "")),
        ("echo 'Odd'", ([], "nvidia-smi reports no memory size of Odd")),
        (
            "echo 'NVIDIA-SMI has failed'; exit 9",
            ([], "nvidia-smi failed for 0.005 s (status 9): NVIDIA-SMI has failed"),
        ),
        ("exit 12", ([], "nvidia-smi failed for 0.005 s (status 12): no output")),
    ):
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        assert hardware_and_network_benchmark._list_gpus() == found
    monkeypatch.setattr(hardware_and_network_benchmark, "DRIVER_RETRY_DELAY", 0.01)
    monkeypatch.setattr(hardware_and_network_benchmark, "DRIVER", 0.05)
    program.write_text("#!/bin/sh\nexec sleep 30\n")
    assert hardware_and_network_benchmark._list_gpus()[1].startswith("nvidia-smi failed: ")


def test_unauthenticated_connections_do_not_block_the_benchmark_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_and_network_benchmark, "SEND_SECONDS", 0.01)
    monkeypatch.setattr(hardware_and_network_benchmark, "MAX_UNAUTHENTICATED", 3)
    word = "0123456789abcdef"
    before = threading.active_count()
    port = hardware_and_network_benchmark.start_receiver("127.0.0.1", word)
    silent = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(6)]
    silent[-1].sendall(word[:-1].encode())
    assert silent[0].recv(1) == b"", "only so many are held"
    sent = hardware_and_network_benchmark.measure_send({"address": "127.0.0.1", "port": port, "word": word})
    assert sent["rate"] > 0 and sent["why"] == ""
    for each in silent:
        with each:
            each.settimeout(5)
            with suppress(ConnectionResetError):
                assert each.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)
    wait_until(lambda: threading.active_count() == before)


def test_benchmark_receiver_closes_after_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_and_network_benchmark, "LISTEN_TIMEOUT", 0.05)
    port = hardware_and_network_benchmark.start_receiver("127.0.0.1", "w")
    with socket.create_connection(("127.0.0.1", port), 5) as slow:
        slow.sendall(b"w and no end")
        slow.settimeout(5)
        with suppress(ConnectionResetError):
            assert slow.recv(1) == b""


# A machine's own end: put off while an agent lives, by a clock in the test's hand.


@pytest.fixture
def shutdown_requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Shutdown commands that were requested from the system."""
    found: list[str] = []
    monkeypatch.setattr(agent_state_lease_deadman_and_network_info, "_schedule_shutdown", found.append)
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(("minutes", "pause"), [(15, 60.0), (2, 24.0)])
def test_deadman_switch_is_postponed_well_before_it_fires(
    shutdown_requests: list[str], clock: list[float], minutes: int, pause: float
) -> None:
    man = DeadmanSwitch(minutes)
    man.postpone()
    clock[0] += pause - 1
    man.postpone()
    assert shutdown_requests == [f"+{minutes}"], "and not at each look"
    clock[0] += 1
    man.postpone()
    assert shutdown_requests == [f"+{minutes}"] * 2
    man.trigger()
    assert shutdown_requests[2:] == ["now"]


def test_deadman_switch_without_minutes_never_shuts_down(shutdown_requests: list[str], clock: list[float]) -> None:
    man = DeadmanSwitch(0)
    man.postpone()
    man.trigger()
    assert shutdown_requests == []
