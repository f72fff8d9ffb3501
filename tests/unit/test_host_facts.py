"""What a host says before it has an agent: what is not as it should be is refused before anything acts on it."""

from __future__ import annotations

from typing import Any

import pytest

from skyward_core.protocol import host_facts
from skyward_core.protocol.frame_codec import WireError

FACTS: dict[str, Any] = {
    "python": "/usr/bin/python3", "version": [3, 11, 4], "home": "/root", "hostname": "h", "system": "Linux",
    "machine": "x86_64", "uid": 0, "address": "10.0.0.1", "port": 22, "time": 1.5, "root": "/root/.cache/skyward",
    "unusable": [], "doubted": "", "gpus": [], "nvml": False, "cpus": 2, "free": 1, "bundle": True, "rest": True,
    "socket": "/s", "shared": False, "running": False,
}  # fmt: skip
STATUS: dict[str, Any] = {"kept": {}, "orphans": [], "left": False, "ended": "", "ended_at": 0.0}


@pytest.mark.parametrize("value", [None, [1], {"a": 1}, float("nan"), 1 << 70])
def test_what_a_host_tells_of_itself_is_looked_at(value: Any) -> None:
    host_facts.validate_facts(dict(FACTS), status=False)
    host_facts.validate_facts(FACTS | STATUS, status=True)
    host_facts.validate_facts({key: FACTS[key] for key in host_facts.FACTS} | {"root": ""}, status=True)
    for key in (FACTS | STATUS).keys() - {"uid", "kept", "cpus"} - ({"version", "orphans"} if value == [1] else set()):
        with pytest.raises(WireError, match=key):
            host_facts.validate_facts(FACTS | STATUS | {key: value}, status=True)


DONE: dict[str, dict[str, Any]] = {
    "environment": {
        "python": "/root/.cache/skyward/env-1/bin/python",
        "installed": {"torch": "2.4.0+cpu", "own": ""},
    },
    "manifest": {"folder": "/srv/a", "wanted": [0, 3], "doubtful": [[1, "ab" * 64]]},
    "gpus": {"gpus": ["NVIDIA H100, 81559 MiB, 570.1"]},
    "reach": {"reached": [True, False]},
    "probe": {
        "gpus": [["Tesla T4", 15360.0]],
        "tflops": 51.5,
        "disk": 812.25,
        "port": 40001,
        "time": 1.5,
        "whys": {"matmul": "no torch there"},
    },
    "send": {"rate": 1200.5, "why": ""},
    "agent": {"socket": "/tmp/skyward/a.sock"},
    "end": {},
}
NO_ANSWERS: list[Any] = [
    None, 7, "", "work/a", "/a\x00b", "/" * 5000, [-1], [True], [1 << 70], ["0"], [None], [[1]], {"a": 1},
    [[0, "../x"]], [[-1, "ab"]], [[1.5, "ab"]], [[0, "ab", 1]], float("nan"), {"--hash": "1"}, {"a": "1\n-i x"},
]  # fmt: skip


def is_one_all_the_same(key: str, value: Any) -> bool:
    """Whether what is no answer elsewhere is one of a measurement: a figure, a reason, or reasons."""
    if key == "port":
        return type(value) is int and 0 <= value < 1 << 16
    if key in ("tflops", "disk", "time", "rate"):
        return type(value) in (int, float) and -(1 << 60) < value < 1 << 60
    if key == "why":
        return type(value) is str
    return False


@pytest.mark.parametrize("name", ["\x1b]0;x\x07", "gpus "])
def test_why_something_was_not_measured_is_told_of_what_is_measured_alone(name: str) -> None:
    with pytest.raises(WireError, match="its 'whys' cannot be"):
        host_facts.validate_task_result("probe", DONE["probe"] | {"whys": {name: "no"}})


@pytest.mark.parametrize("what", sorted(DONE))
def test_what_a_host_says_when_something_was_done_is_looked_at(what: str) -> None:
    host_facts.validate_task_result(what, DONE[what])
    for key, value in DONE[what].items():
        with pytest.raises(WireError, match=f"its '{key}' cannot be None"):
            host_facts.validate_task_result(what, {name: each for name, each in DONE[what].items() if name != key})
        others = [other[name] for other in DONE.values() for name in other if type(other[name]) is not type(value)]
        for wrong in (*NO_ANSWERS, *others):
            if wrong == [True] and what == "reach":
                continue
            if wrong == ["0"] and what == "gpus":
                continue
            if what in ("probe", "send") and is_one_all_the_same(key, wrong):
                continue
            with pytest.raises(WireError, match=f"its '{key}' cannot be"):
                host_facts.validate_task_result(what, DONE[what] | {key: wrong})
