"""``skyward-tui cancel`` and ``down``: stop runs, end pools, with proof."""

from __future__ import annotations

from collections.abc import Sequence

from skyward_core import exits
from skyward_core.errors import SkywardError

from .console import Console
from .follow import Follower
from .reach import opened, recorded, up
from .report import receipt_line


def cancel(run: str, console: Console) -> int:
    """Stop a run on all its ranks; one that has ended stays as it is."""
    with opened(console) as session:
        row = recorded(session, run)
        state = row.state
        if state == "running":
            pool = session.ledger.pool(row.token).key
            session.attach(pool).result()
            session.cancel(pool, run).result()
            state = session.wait(pool, run).result().state
    console.note(f"run {run} is {state}")
    console.result({"run": run, "state": state})
    return exits.OK


def down(pools: Sequence[str], everything: bool, yes: bool, console: Console) -> int:
    """End pools and show the receipts; exit status 3 where an end could not be verified."""
    follower = Follower(console)
    status, receipts = exits.OK, []
    with opened(console) as session:
        names = [row.name for row in session.ledger.live()] if everything else up(session, pools)
        question = f"tear down {', '.join(names)}? what runs there is stopped"
        if not names:
            console.note("no pools are up")
        elif not yes and console.is_terminal and not console.confirm(question):
            console.note("nothing was torn down")
            return exits.FAILED
        with follower.signals():
            for name, future in [(name, session.down(name)) for name in names]:
                try:
                    receipt = follower.wait(future, heed=False)
                except SkywardError as error:
                    console.note(f"error: pool {name} could not be torn down: {error}")
                    status = exits.UNVERIFIED
                    continue
                console.note(receipt_line(receipt))
                receipts.append(receipt.to_json())
                status = status if receipt.ok else exits.UNVERIFIED
    console.result({"receipts": receipts})
    return status
