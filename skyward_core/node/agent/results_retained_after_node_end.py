"""Retained results: unfetched results and logs that stay on the host after the node's end.

The node's folder is renamed from ``NAME`` to ``kept.NAME`` and gets a file that lists its content and expiry. A client
fetches the results through a new agent without ranks in that folder (``pool.fetch_retained_results``).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from skyward_core.node.bootstrap.host_inspection import read_retained_facts
from skyward_core.protocol.frame_codec import RESULT_KINDS
from skyward_core.protocol.node_paths import ASK, ERR, OUT, NodePaths

if TYPE_CHECKING:
    from skyward_core.node.agent.call_journal import JournalFrame

# minimum seconds for which results are retained after a teardown, so that its client can fetch or discard them
MIN_RETENTION = 3600.0
REDACT_CHUNK_BYTES = 1 << 20


def unfetched_sizes(frames: Iterable[tuple[JournalFrame, bytes]]) -> dict[str, int]:
    """Return for each run the bytes of results and exceptions that no client has confirmed, from an agent's journal."""
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
    """Delete the folder of an ended node, or retain the folder if it has unfetched results.

    Args:
        folder: The node's folder.
        seconds: How long to retain results; 0 to delete them. Does not change the expiry of already retained results.
        logs: Run -> bytes of its logs that no client has received.
    """
    import shutil  # imported late: its compression modules use memory that most agents do not need

    from skyward_core.node.agent.call_journal import read_journal

    paths, folder = NodePaths(str(folder)), Path(folder)
    runs = unfetched_sizes(read_journal(Path(paths.journal)))
    for run, size in (logs or {}).items():
        runs[run] = runs.get(run, 0) + size
    before = read_retained_facts(str(folder))
    until = before["until"] if before else time.time() + seconds
    if not runs or until <= time.time():
        shutil.rmtree(folder, ignore_errors=True)
        return
    for unneeded in (paths.blobs, paths.sources):
        shutil.rmtree(unneeded, ignore_errors=True)
    for pipe in folder.glob(f"stacks.*{ASK}"):
        # Remove named pipes: a program that reads them would wait for a writer forever.
        pipe.unlink(missing_ok=True)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    facts = {"until": until, "runs": runs, "bytes": size}
    partial = Path(f"{paths.retained_facts}.part")
    partial.write_text(json.dumps(facts), encoding="utf-8")
    partial.replace(paths.retained_facts)
    target = Path(paths.retained_folder)
    if target != folder:
        folder.rename(target)


def retention_seconds(folder: Path | str) -> float:
    """Return for how many seconds results are retained, as the agent of a folder has saved it."""
    try:
        state = json.loads(Path(NodePaths(str(folder)).state).read_text(encoding="utf-8"))
        return float(state.get("keep_results", 0.0))
    except (OSError, ValueError):
        return 0.0


def redact_logs(spool: Path, change: Callable[[bytes], bytes], reach: int) -> None:
    """Redact secrets in log files in place. The agent that serves the files later will not know the secrets.

    Args:
        spool: Folder of the log files.
        change: Redacts bytes without changing their number.
        reach: Bytes by which a secret may extend beyond a chunk.
    """
    for path in spool.iterdir():
        if not path.name.endswith((OUT, ERR)):
            continue
        with path.open("r+b", buffering=0) as file:
            at = 0
            while data := os.pread(file.fileno(), REDACT_CHUNK_BYTES + reach, at):
                if (clean := change(data)) != data:
                    os.pwrite(file.fileno(), clean, at)
                at += REDACT_CHUNK_BYTES
