"""What a pool's folder on the client tells of it, so that a ledger which was deleted or damaged can be made anew.

It is there as long as anything of the pool is: machines, or what hosts keep because nobody has fetched it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .user_files import MOST_OF_OURS, json_of, read_text

NAME = "pool.json"
COLUMNS = {"token", "name", "provider", "spec", "state", "created_at", "ended_at", "receipt", "pid"}
WIDTHS = {"machines": 3, "former": 2, "kept": 3}  # tables of the ledger, and how many columns they have

Rows = Sequence[Sequence[Any]]


def write(folder: Path, pool: dict[str, Any], tables: Mapping[str, Rows]) -> None:
    """Leave a trace of a pool: its row of the ledger, and those of other tables that are about it."""
    partial = folder / f"{NAME}.part"
    with suppress(OSError):  # the ledger has it; this is for the day on which that is lost
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial.touch(mode=0o600)
        partial.write_text(json.dumps({"pool": pool, **tables}), encoding="utf-8")
        partial.replace(folder / NAME)


def remove(folder: Path) -> None:
    """Nothing is left of the pool."""
    with suppress(OSError):  # its folder may have gone with it
        (folder / NAME).unlink(missing_ok=True)


def read(home: Path) -> Iterator[tuple[dict[str, Any], dict[str, Rows]]]:
    """What the folders below a home tell: of each pool its row, and those of the tables in ``WIDTHS``."""
    for path in sorted(home.glob(f"pools/*/{NAME}")):
        try:
            told = json_of(read_text(path, most=MOST_OF_OURS))
            pool = dict(told["pool"])
            tables: dict[str, Rows] = {table: list(told.get(table, ())) for table in WIDTHS}
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a crash cut it short; the one before stays until the new one is whole, so there was none
        whole = all(len(row) == WIDTHS[table] for table, rows in tables.items() for row in rows)
        if pool.keys() == COLUMNS and whole:
            yield pool, tables
