"""What was bought and what came: the verdict, what a host measures of itself, and what is made of it."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from skyward_core.model.machines import MeasuredHardware, OrderedHardware, find_mismatch
from skyward_core.node.bootstrap import hardware_benchmark
from skyward_core.pool.startup import MachineVerifier, _parse_probe
from skyward_core.protocol import host_facts
from tests.support.waiting import wait_until

T4 = OrderedHardware("T4", 4, 16.0)


@pytest.mark.parametrize(
    ("arrived", "said"),
    [
        (MeasuredHardware(gpus=[("Tesla T4", 15.0)] * 4, disk=120.0), ""),
        (MeasuredHardware(gpus=[("Tesla T4", 15.0)] * 5), ""),
        (MeasuredHardware(gpus=[("Tesla T4", 15.0)] * 3), "it has 3 GPUs, and 4 x T4 of 16 GB were bought"),
        (MeasuredHardware(gpus=[]), "it has 0 GPUs, and 4 x T4 of 16 GB were bought"),
        (
            MeasuredHardware(gpus=[*[("Tesla T4", 15.0)] * 3, ("Tesla T4", 8.0)]),
            "a GPU of it has 8.0 GB, and 4 x T4 of 16 GB",
        ),
        (MeasuredHardware(gpus=None), ""),
        (MeasuredHardware(disk=4.2), "its disk takes 4.2 MB/s, and 5 MB/s is the least"),
        (MeasuredHardware(disk=None, offset=3600.0, rate=0.0), ""),
    ],
)
def test_what_is_a_lie_is_told_with_its_figure(arrived: MeasuredHardware, said: str) -> None:
    assert find_mismatch(T4, arrived).startswith(said) and bool(find_mismatch(T4, arrived)) == bool(said)


def test_a_machine_without_gpus_is_held_to_none() -> None:
    assert find_mismatch(OrderedHardware(), MeasuredHardware(gpus=[], disk=50.0)) == ""


def test_what_was_found_in_words() -> None:
    found = MeasuredHardware(
        gpus=[("Tesla T4", 15.0)] * 4,
        disk=120.4,
        tflops=51.2,
        offset=-40.0,
        neighbour=1,
        rate=1204.0,
        notes=["x"],
    )
    assert str(found) == (
        "4 x Tesla T4 of 15 GB, 51 TFLOP/s in float16, disk 120 MB/s, to node 1 1,204 MB/s, clock 40 s behind, x"
    )


def told(**more: Any) -> Any:
    return {
        "gpus": [["T4\x1b[2J", 15360]],
        "tflops": 0,
        "disk": 9,
        "port": 1,
        "time": 50.0,
        "whys": {},
    } | more


def test_what_a_host_says_is_filtered_and_only_what_was_bought_is_asked_for() -> None:
    found = _parse_probe(told(whys={"matmul": "no\ttorch\x1b]0;x\x07"}), 40.0, T4)
    assert found.gpus is not None and str(found).isprintable() and len(found.gpus) == 1
    assert _parse_probe(told(), 40.0, OrderedHardware()).gpus is None
    assert _parse_probe(told(whys={"gpus": "there is no nvidia-smi", "disk": "full"}), 40.0, T4).gpus is None


@pytest.mark.parametrize(
    ("rates", "cut_off"),
    [
        ({0: 900.0, 1: 900.0, 2: 900.0}, set()),
        ({0: 900.0, 1: 0.0, 2: 0.0}, {2}),
        ({0: 0.0, 1: 900.0, 2: 900.0}, set()),
        ({0: 0.0, 1: 0.0, 2: 0.0}, set()),
        ({0: 0.0, 1: 0.0}, set()),
        ({0: None, 1: 0.0, 2: 0.0, 3: 0.0}, set()),
    ],
)
def test_a_node_that_nobody_reaches_is_told_from_a_network_that_lets_nobody_through(
    rates: dict[int, float | None], cut_off: set[int]
) -> None:
    found = {node: MeasuredHardware(neighbour=(node + 1) % len(rates), rate=rate) for node, rate in rates.items()}
    assert MachineVerifier._find_isolated(None, found).keys() == cut_off  # type: ignore[arg-type]


def test_a_host_measures_itself_and_takes_what_its_neighbour_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware_benchmark, "DISK_BYTES", 8 << 20)
    monkeypatch.setattr(hardware_benchmark, "SEND_SECONDS", 0.1)
    monkeypatch.setenv("PATH", str(tmp_path))
    word = "0123456789abcdef" * 2
    wanted = {"gpus": True, "python": str(tmp_path / "none"), "address": "127.0.0.1", "word": word}
    found = hardware_benchmark.measure_host(tmp_path, wanted)
    host_facts.validate_task_result("probe", found | {"gpus": [list(each) for each in found["gpus"]]})
    assert found["disk"] > 0 and list(tmp_path.iterdir()) == [], "it leaves nothing"
    assert found["whys"]["gpus"] == "there is no nvidia-smi" and "matmul" in found["whys"]
    assert abs(found["time"] - time.time()) < 60
    with socket.create_connection(("127.0.0.1", found["port"]), 5) as stranger:
        stranger.sendall(b"x" * len(word))
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(1) == b"", "who does not know the word is told nothing"
    sent = hardware_benchmark.measure_send({"address": "127.0.0.1", "port": found["port"], "word": word})
    host_facts.validate_task_result("send", sent)
    assert sent["rate"] > 0 and sent["why"] == ""


def test_who_is_killed_while_it_writes_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[Path]] = []
    monkeypatch.setattr(hardware_benchmark, "DISK_BYTES", 1)
    monkeypatch.setattr(os, "fsync", lambda number: seen.append(list(tmp_path.iterdir())))
    speed, why = hardware_benchmark._measure_disk(tmp_path)
    assert speed > 0 and not why and seen == [[]]


def test_a_quick_network_is_sent_no_more_than_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_benchmark, "MAX_SEND_BYTES", 3 << 20)
    monkeypatch.setattr(hardware_benchmark, "SEND_SECONDS", 60.0)
    taken = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def takes() -> None:
            line, _ = server.accept()
            with line:
                while piece := line.recv(1 << 20):
                    taken.append(len(piece))
                line.sendall((3 << 20).to_bytes(8, "big"))

        threading.Thread(target=takes, daemon=True).start()
        sent = hardware_benchmark.measure_send({"address": "127.0.0.1", "port": server.getsockname()[1], "word": "w"})
    assert sent["rate"] > 0 and sum(taken) == (3 << 20) + 1


def test_a_neighbour_that_is_not_there_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert hardware_benchmark.measure_send({"address": "127.0.0.1", "port": port, "word": "w"})["why"]


def test_a_neighbour_that_takes_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_benchmark, "SEND_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def takes() -> None:
            line, _ = server.accept()
            with line:
                while line.recv(1 << 16):
                    pass

        threading.Thread(target=takes, daemon=True).start()
        sent = hardware_benchmark.measure_send({"address": "127.0.0.1", "port": server.getsockname()[1], "word": "w"})
    assert (sent["rate"], sent["why"]) == (0.0, "it took nothing")


def test_what_the_driver_says_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_benchmark, "DRIVER_RETRY_DELAY", 60.0)
    monkeypatch.setattr(hardware_benchmark, "DRIVER", 0.005)
    program = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for script, found in (
        (
            "echo 'Tesla T4, 15360 MiB, 570.0'; echo 'Tesla T4, 15360 MiB, 570.0'",
            ([("Tesla T4", 15360.0)] * 2, ""),
        ),
        ("echo 'No devices were found'; exit 6", ([], "")),
        ("echo 'Odd'", ([], "nvidia-smi tells no memory of Odd")),
        (
            "echo 'NVIDIA-SMI has failed'; exit 9",
            ([], "nvidia-smi fails for 0.005 s (status 9): NVIDIA-SMI has failed"),
        ),
        ("exit 12", ([], "nvidia-smi fails for 0.005 s (status 12): it says nothing")),
    ):
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        assert hardware_benchmark._list_gpus() == found
    monkeypatch.setattr(hardware_benchmark, "DRIVER_RETRY_DELAY", 0.01)
    monkeypatch.setattr(hardware_benchmark, "DRIVER", 0.05)
    program.write_text("#!/bin/sh\nexec sleep 30\n")
    assert hardware_benchmark._list_gpus()[1].startswith("nvidia-smi does not answer")


@pytest.mark.parametrize("first", ["NVIDIA-SMI has failed; exit 9", "No devices were found; exit 6"])
def test_a_driver_that_still_loads_is_asked_again(first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_benchmark, "DRIVER_RETRY_DELAY", 0.01)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    program = tmp_path / "nvidia-smi"
    once = f"if mkdir {tmp_path}/asked 2>/dev/null; then echo {first}; fi"
    program.write_text(f"#!/bin/sh\n{once}\necho 'Tesla T4, 15360 MiB, 570.0'\n")
    program.chmod(0o755)
    assert hardware_benchmark._list_gpus() == ([("Tesla T4", 15360.0)], "")


def test_strangers_that_hold_the_listener_keep_the_neighbour_out_no_longer_than_it_takes_to_say_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardware_benchmark, "SEND_SECONDS", 0.01)
    monkeypatch.setattr(hardware_benchmark, "MAX_UNAUTHENTICATED", 3)
    word = "0123456789abcdef"
    before = threading.active_count()
    port = hardware_benchmark.start_receiver("127.0.0.1", word)
    silent = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(6)]
    silent[-1].sendall(word[:-1].encode())
    assert silent[0].recv(1) == b"", "only so many are held"
    sent = hardware_benchmark.measure_send({"address": "127.0.0.1", "port": port, "word": word})
    assert sent["rate"] > 0 and sent["why"] == ""
    for each in silent:
        with each:
            each.settimeout(5)
            with suppress(ConnectionResetError):
                assert each.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)
    wait_until(lambda: threading.active_count() == before)


def test_nobody_is_waited_for_beyond_the_listener_s_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_benchmark, "LISTEN_TIMEOUT", 0.05)
    port = hardware_benchmark.start_receiver("127.0.0.1", "w")
    with socket.create_connection(("127.0.0.1", port), 5) as slow:
        slow.sendall(b"w and no end")
        slow.settimeout(5)
        with suppress(ConnectionResetError):
            assert slow.recv(1) == b""
