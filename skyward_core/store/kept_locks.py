"""What was installed on the nodes of a pool, kept beside its logs: of each node all that it ever was, in order."""

from __future__ import annotations

from pathlib import Path

from .home import pool_path
from .whole_file import write_whole

FOLDER = "locks"


def keep(folder: Path, node: int, text: str) -> None:
    """Keep a node's lock where it is not the one that it had last.

    Args:
        folder: the pool's.

    Raises:
        OSError: it cannot be written.
    """
    locks = folder / FOLDER
    before = _of_node(locks, node)
    if before and before[-1].read_text(encoding="utf-8") == text:
        return
    locks.mkdir(mode=0o700, exist_ok=True)
    write_whole(locks / f"n{node:04}.{len(before):04}.txt", text.encode())


def kept(pool: str, until: float | None = None) -> dict[int, str]:
    """The locks of a pool, node by node.

    Args:
        pool: its key.
        until: seconds since the epoch; of later ones none counts. None for now.

    Raises:
        OSError: one cannot be read.
    """
    locks = pool_path(pool) / FOLDER
    nodes = sorted({int(path.name[1:5]) for path in locks.glob("n????.????.txt")})
    found = {}
    for node in nodes:
        paths = _of_node(locks, node)
        early = [path for path in paths if until is None or path.stat().st_mtime <= until]
        found[node] = (early or paths)[-1 if early else 0].read_text(encoding="utf-8")
    return found


def _of_node(locks: Path, node: int) -> list[Path]:
    return sorted(locks.glob(f"n{node:04}.????.txt"))
