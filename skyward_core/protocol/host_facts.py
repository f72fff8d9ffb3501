"""What a host says before there is an agent on it, and so in no frame: what it tells of itself, and when something was
done on it. Only clients hear it.

As of frames (``protocol.frame_schema``), it is looked at before anything acts on it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from skyward_core.protocol.frame_codec import WireError
from skyward_core.protocol.validators import (
    Checks,
    all_of,
    is_count,
    is_file,
    is_flag,
    is_number,
    is_port,
    is_text,
    or_none,
)

MEASURED = {"gpus", "matmul", "disk", "port"}  # what a host says why it could not measure


def _is_path(value: Any) -> bool:
    """A whole path on a host."""
    return type(value) is str and value[:1] == "/" and len(value) <= 4096 and "\0" not in value


def _is_object(value: Any) -> bool:
    return type(value) is dict


def _is_doubt(value: Any) -> object:
    """Which file a host has with another time, and the hash of what it has."""
    return type(value) is list and len(value) == 2 and is_count(value[0]) and is_file(value[1])


def _is_gpu(value: Any) -> object:
    """Its name, and its memory in MiB."""
    return type(value) is list and len(value) == 2 and is_text(value[0]) and is_number(value[1])


def _is_gpu_process(value: Any) -> object:
    """What has something on a GPU, as ``machines.GpuProcess`` has it."""
    return type(value) is dict and _has(
        value,
        {
            "pid": is_count,
            "user": _is_short,
            "command": _is_short,
            "memory": or_none(is_count),
            "computes": is_flag,
        },
    )


def _is_gpu_use(value: Any) -> object:
    """A GPU and who uses it, as ``machines.GpuUse`` has it."""
    return type(value) is dict and _has(
        value,
        {
            "number": _is_short,
            "id": _is_short,
            "model": _is_short,
            "used": or_none(is_count),
            "total": or_none(is_count),
            "util": or_none(is_count),
            "processes": all_of(_is_gpu_process),
            "holder": _is_short,
        },
    )


def _has(value: dict[str, Any], checks: Checks) -> bool:
    return value.keys() == checks.keys() and all(check(value[key]) for key, check in checks.items())


def _is_short(value: Any) -> bool:
    return type(value) is str and len(value) <= 300


def _are_words(value: Any) -> bool:
    """Why something could not be measured, by what that is."""
    return (
        type(value) is dict
        and value.keys() <= MEASURED
        and all(is_text(why) and len(why) <= 1000 for why in value.values())
    )


def _are_versions(value: Any) -> bool:
    """Packages by their names, each with its version, or none."""
    return type(value) is dict and all(
        type(version) is str and _PACKAGE.fullmatch(name) and _VERSION.fullmatch(version)
        for name, version in value.items()
    )


_PACKAGE, _VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"), re.compile(r"[A-Za-z0-9._+!-]{0,100}")

# What a host tells of itself; of one that can hold nothing of ours some of it is missing.
FACTS: Checks = {
    "python": is_text,
    "version": all_of(is_count),
    "home": is_text,
    "hostname": is_text,
    "system": is_text,
    "machine": is_text,
    "address": is_text,
    "port": is_port,
    "time": is_number,
    "root": is_text,
    "unusable": all_of(is_text),
    "doubted": is_text,
    "gpus": all_of(is_text),
    "nvml": is_flag,
    "cpus": or_none(is_count),
}
FACTS_OF_ROOT: Checks = {
    "free": is_count,
    "bundle": is_flag,
    "rest": is_flag,
    "socket": is_text,
    "shared": is_flag,
    "running": is_flag,
}
FACTS_OF_POOL: Checks = {
    "kept": _is_object,  # looked into where it is written down
    "orphans": all_of(is_count),
    "left": is_flag,
    "ended": is_text,
    "ended_at": is_number,
}

# What it says when something was done on it, by what that was.
DONE: Mapping[str, Checks] = {
    "environment": {"python": _is_path, "installed": _are_versions},
    "manifest": {"folder": _is_path, "wanted": all_of(is_count), "doubtful": all_of(_is_doubt)},
    "gpus": {"gpus": all_of(is_text)},
    "look": {"uses": all_of(_is_gpu_use), "why": is_text},
    "probe": {
        "gpus": all_of(_is_gpu),
        "tflops": is_number,
        "disk": is_number,
        "port": is_port,
        "time": is_number,
        "whys": _are_words,
    },
    "send": {"rate": is_number, "why": is_text},
    "reach": {"reached": all_of(is_flag)},
    "agent": {"socket": _is_path},
}


def facts(told: Mapping[str, Any], *, status: bool) -> None:
    """Look at what a host tells of itself.

    Args:
        status: whether it was asked for the state of a pool, too.

    Raises:
        WireError: it is not as such facts are.
    """
    _look_at(told, FACTS | (FACTS_OF_ROOT | (FACTS_OF_POOL if status else {}) if told.get("root") else {}))


def done(what: str, told: dict[str, Any]) -> None:
    """Look at what a host says when something was done on it.

    Raises:
        WireError: it is not as such answers are.
    """
    _look_at(told, DONE.get(what, {}))


def _look_at(told: Mapping[str, Any], checks: Checks) -> None:
    for key, check in checks.items():
        if key not in told or not check(told[key]):
            raise WireError(f"its {key!r} cannot be {told.get(key)!r:.80}")
