"""The end of a script's pool: torn down, and then one look for what is left of any in the accounts that it used."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, TextIO, cast

from ...model.capabilities import Rents
from ...tasks.stdout_lines import put

if TYPE_CHECKING:
    from ...pool.pool import Pool
    from ...store.ledger_rows import Receipt


async def down(pool: Pool) -> Receipt:
    """Tear a pool down. What is found to be left stands in the receipt's notes, and is said."""
    receipt = await pool.down()
    if not isinstance(pool.context.provider, Rents):
        return receipt
    from ...pool.leftovers import notes_after  # others have no account to look through

    notes = await notes_after(pool.row, pool.context.ledger)
    for note in notes:
        tell(f"pool {pool.name}: {note}")
    return replace(receipt, notes=(*receipt.notes, *notes))


def tell(text: str) -> bool:
    """Write a line to standard error, and return whether that was possible: no stream keeps a pool from its end."""
    try:
        put(cast(TextIO, sys.stderr), f"{text}\n")
    except Exception:  # noqa: BLE001  it is None, or any object that the script has put in its place
        return False
    return True
