"""Validation of the answers of a host without an agent: facts about the host, and results of host commands.

Only clients receive these answers. Like frames (``protocol.frame_schema``), the answers are validated before use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from skyward_core.protocol.frame_codec import WireError
from skyward_core.protocol.validators import (
    Checks,
    is_bool,
    is_count,
    is_file_name,
    is_number,
    is_port,
    is_text,
    list_of,
    object_of,
    optional,
    split_keys,
)

MEASUREMENTS = {"gpus", "matmul", "disk", "port"}  # measurements for which a host may report a failure reason


def _is_path(value: Any) -> TypeGuard[str]:
    """Check for an absolute path."""
    return type(value) is str and value[:1] == "/" and len(value) <= 4096 and "\0" not in value


def _is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return type(value) is dict


def _is_indexed_hash(value: Any) -> TypeGuard[tuple[int, str]]:
    """Check for the index of a file and the hash of the host's version."""
    return type(value) is list and len(value) == 2 and is_count(value[0]) and is_file_name(value[1])


def _is_gpu(value: Any) -> TypeGuard[tuple[str, float]]:
    """Check for a GPU's name and its memory in MiB."""
    return type(value) is list and len(value) == 2 and is_text(value[0]) and is_number(value[1])


def _is_short_text(value: Any) -> TypeGuard[str]:
    return type(value) is str and len(value) <= 300


# A process on a GPU, in the format of ``machines.GpuProcess``.
_GPU_PROCESS = object_of(
    {
        "pid": is_count,
        "user": _is_short_text,
        "command": _is_short_text,
        "memory": optional(is_count),
        "computes": is_bool,
    },
    only=True,
)
# Usage of a GPU, in the format of ``machines.GpuUse``.
_GPU_USE = object_of(
    {
        "number": _is_short_text,
        "id": _is_short_text,
        "model": _is_short_text,
        "used": optional(is_count),
        "total": optional(is_count),
        "util": optional(is_count),
        "processes": list_of(_GPU_PROCESS),
        "holder": _is_short_text,
    },
    only=True,
)


def _is_reason_map(value: Any) -> TypeGuard[dict[str, str]]:
    """Check for the reasons why measurements failed, by measurement."""
    return (
        type(value) is dict
        and value.keys() <= MEASUREMENTS
        and all(is_text(reason) and len(reason) <= 1000 for reason in value.values())
    )


def _is_version_map(value: Any) -> TypeGuard[dict[str, str]]:
    """Check for packages with their versions, which may be empty."""
    return type(value) is dict and all(
        type(version) is str and _PACKAGE.fullmatch(name) and _VERSION.fullmatch(version)
        for name, version in value.items()
    )


_PACKAGE, _VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"), re.compile(r"[A-Za-z0-9._+!-]{0,100}")

# Facts about a host. Hosts without a usable folder send fewer facts.
FACTS: Checks = {
    "python": is_text,
    "version": list_of(is_count),
    "home": is_text,
    "hostname": is_text,
    "system": is_text,
    "machine": is_text,
    "address": is_text,
    "port": is_port,
    "time": is_number,
    "root": is_text,
    "unusable": list_of(is_text),
    "doubted": is_text,
    "gpus": list_of(is_text),
    "nvml": is_bool,
    "cpus": optional(is_count),
}
FACTS_OF_ROOT: Checks = {
    "free": is_count,
    "bundle": is_bool,
    "rest": is_bool,
    "socket": is_text,
    "shared": is_bool,
    "running": is_bool,
}
FACTS_OF_POOL: Checks = {
    "kept": _is_object,  # the code that reads the content validates it
    "orphans": list_of(is_count),
    "left": is_bool,
    "ended": is_text,
    "ended_at": is_number,
}

# Results of host commands, by command.
DONE: Mapping[str, Checks] = {
    "environment": {"python": _is_path, "installed": _is_version_map},
    "manifest": {
        "folder": _is_path,
        "wanted": list_of(is_count),
        "doubtful": list_of(_is_indexed_hash),
        "current?": is_bool,
    },
    "gpus": {"gpus": list_of(is_text)},
    "look": {"uses": list_of(_GPU_USE), "why": is_text},
    "probe": {
        "gpus": list_of(_is_gpu),
        "tflops": is_number,
        "disk": is_number,
        "port": is_port,
        "time": is_number,
        "whys": _is_reason_map,
    },
    "send": {"rate": is_number, "why": is_text},
    "reach": {"reached": list_of(is_bool)},
    "agent": {"socket": _is_path},
}


def validate_facts(facts: Mapping[str, Any], *, status: bool) -> None:
    """Validate a host's facts.

    Args:
        facts: The facts.
        status: Whether the state of a pool was requested, too.

    Raises:
        WireError: If the facts are invalid.
    """
    _validate(facts, FACTS | (FACTS_OF_ROOT | (FACTS_OF_POOL if status else {}) if facts.get("root") else {}))


def validate_task_result(what: str, result: dict[str, Any]) -> None:
    """Validate the result of a host command.

    Raises:
        WireError: If the result is invalid.
    """
    _validate(result, DONE.get(what, {}))


def _validate(answer: Mapping[str, Any], checks: Checks) -> None:
    needs, may = split_keys([checks])
    for key, check in (needs | may).items():
        if not check(answer[key]) if key in answer else key in needs:
            raise WireError(f"invalid {key!r} in its answer: {answer.get(key)!r:.80}")
