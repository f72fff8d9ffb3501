"""How commands come by a session, and by the pools and runs that a person names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches

from skyward_core.errors import UsageError
from skyward_core.ledger import RunRow
from skyward_core.session import Session

from .console import Console


@contextmanager
def opened(console: Console) -> Iterator[Session]:
    """A session for one command; all pools go on when it ends."""
    session = Session()
    if session.notice:
        console.note(session.notice)
    try:
        yield session
    finally:
        session.detach()


def up(session: Session, names: Sequence[str]) -> list[str]:
    """The names given, each once; all of those pools are up.

    Raises:
        UsageError: no pool of that name is up.
    """
    live = [row.name for row in session.ledger.live()]
    for name in names:
        if name not in live:
            close = get_close_matches(name, live, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"up are: {', '.join(live) or 'none'}"
            raise UsageError(f"no pool {name!r} is up; {hint}")
    return list(dict.fromkeys(names))


def recorded(session: Session, run: str) -> RunRow:
    """A run as the ledger has it.

    Raises:
        UsageError: it has none of that name.
    """
    row = session.ledger.run(run)
    if row is None:
        raise UsageError(f"no run {run!r}; skyward-tui ls shows pools and their runs")
    return row
