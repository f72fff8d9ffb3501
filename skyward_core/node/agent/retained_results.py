"""What nobody has fetched when a node ends stays on its host until somebody does, or until its time is over.

The node's folder is renamed for that, from ``NAME`` to ``kept.NAME``, with a file in it that says what it holds and
until when. A fresh agent in that folder, without ranks, hands it out (``pool/kept.py`` is the client's side).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward_core.protocol.frame_codec import RESULT_KINDS
from skyward_core.protocol.node_paths import ERR, OUT, NodePaths

if TYPE_CHECKING:
    from skyward_core.node.agent.call_journal import JournalFrame

MIN_RETENTION = 3600.0  # seconds that a client which ends a pool has for fetching, or giving up, what is left
REDACT_CHUNK_BYTES = 1 << 20
LOGS = (OUT, ERR)


def unfetched_sizes(frames: Iterable[tuple[JournalFrame, bytes]]) -> dict[str, int]:
    """Runs with results that no client has confirmed, as an agent's journal tells them, and bytes of those results, or
    of the exceptions in their place."""
    waiting: dict[str, dict[int, int]] = {}
    for header, body in frames:
        if header["t"] == "outcome" and header.get("kind") in RESULT_KINDS:
            waiting.setdefault(header["run"], {})[header["i"]] = header.get("size", 0) or len(body)
        elif header["t"] == "ack":
            for run, only in header["calls"].items():
                for index in list(waiting.get(run, ())) if only is None else only:
                    waiting.get(run, {}).pop(index, None)
    return {run: sum(sizes.values()) for run, sizes in waiting.items() if sizes}


def remove_or_retain(folder: Path | str, seconds: float, logs: Mapping[str, int] | None = None) -> None:
    """Remove the folder of a node that has ended, unless it holds what nobody has fetched: that is kept.

    Args:
        seconds: how long; 0 to keep nothing. What was kept before is kept until the time that was told then.
        logs: runs of which log bytes have reached no client, and how many.
    """
    import shutil  # it loads compressors; what most agents need of this module needs none

    from skyward_core.node.agent.call_journal import read_journal

    paths, folder = NodePaths(str(folder)), Path(folder)
    runs = unfetched_sizes(read_journal(Path(paths.journal)))
    for run, size in (logs or {}).items():
        runs[run] = runs.get(run, 0) + size
    before = read_retained_facts(folder)
    until = before["until"] if before else time.time() + seconds
    if not runs or until <= time.time():
        shutil.rmtree(folder, ignore_errors=True)
        return
    for unneeded in (paths.blobs, paths.sources):
        shutil.rmtree(unneeded, ignore_errors=True)
    told = {"until": until, "runs": runs, "bytes": _folder_size(folder)}
    partial = Path(f"{paths.retained_facts}.part")
    partial.write_text(json.dumps(told), encoding="utf-8")
    partial.replace(paths.retained_facts)
    target = Path(paths.retained_folder)
    if target != folder:
        folder.rename(target)


def retention_seconds(folder: Path | str) -> float:
    """How long what is in a node's folder is to be kept, as its agent has written there."""
    try:
        state = json.loads(Path(NodePaths(str(folder)).state).read_text(encoding="utf-8"))
        return float(state.get("keep_results", 0.0))
    except (OSError, ValueError):
        return 0.0


def read_retained_facts(folder: Path | str) -> dict[str, Any]:
    """What a kept folder holds: ``until`` (Unix time), ``runs`` (their unfetched bytes), ``bytes`` on disk; empty for
    any other folder."""
    try:
        return dict(json.loads(Path(NodePaths(str(folder)).retained_facts).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def redact_logs(spool: Path, change: Callable[[bytes], bytes], reach: int) -> None:
    """Blank secrets in log files where they lie: the agent that hands them out will not know these.

    Args:
        change: gives bytes, as many, without secrets.
        reach: bytes by which a secret may stand over the end of a piece.
    """
    for path in spool.iterdir():
        if not path.name.endswith(LOGS):
            continue
        with path.open("r+b", buffering=0) as file:
            at = 0
            while data := os.pread(file.fileno(), REDACT_CHUNK_BYTES + reach, at):
                if (clean := change(data)) != data:
                    os.pwrite(file.fileno(), clean, at)
                at += REDACT_CHUNK_BYTES


def _folder_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
