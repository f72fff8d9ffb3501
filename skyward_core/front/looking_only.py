"""A session that looks at pools and changes none: what it is asked to do is refused in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..model.errors import UsageError
from .session import Session

if TYPE_CHECKING:
    from ..model.interpreter import Interpreter
    from ..model.machine import Check
    from ..model.spec import PoolSpec
    from ..model.stacks import Stacks
    from ..pool.pool import Pool
    from ..store.ledger_rows import PoolRow, Receipt
    from ..transport.ssh.questions import Ask
    from ..views.views import PoolView
    from .sweeping import Sweep


class LookingOnly(Session):
    """The same pools, as one who only looks; no key of a host is believed that no file knows.

    Raises (through the futures of all that would change something):
        UsageError: this session only looks.
    """

    async def _watch(self, row: PoolRow, *, observer: bool) -> Pool:
        pool = await super()._watch(row, observer=observer)
        pool.book.only_looks = True
        return pool

    async def _ours(self, name: str) -> Pool:
        """Who uses a pool comes to it by this."""
        _refuse()

    def create(
        self, spec: PoolSpec, cwd: Path | None = None, *, begun: Future[PoolView] | None = None
    ) -> Future[PoolView]:
        if begun is not None:
            begun.set_exception(_refusal())
        return _refused()

    def down(
        self, pool: str, *, give_up: bool = False, keep_outputs: int | None = None, now: bool = False
    ) -> Future[Receipt]:
        return _refused()

    def fetch(self, token: str, *, give_up: bool = False) -> Future[list[str]]:
        return _refused()

    def fetch_run(self, run: str) -> Future[list[str]]:
        return _refused()

    def dismiss(self, runs: Sequence[str]) -> Future[None]:
        return _refused()

    def end_left(self, sweep: Sweep, tell: Callable[[str], None] = lambda said: None) -> Future[list[str]]:
        return _refused()

    def check_provider(
        self, name: str, settings: Mapping[str, str], python: Interpreter | None = None
    ) -> Future[list[Check]]:
        # A host that is checked gets a folder of ours.
        return _refused()

    def stacks(
        self, pool: str, run: str = "", ranks: Sequence[int] | None = None, *, signal: bool = False
    ) -> Future[Stacks]:
        # A signal can interrupt what a rank waits in.
        return _refused() if signal else super().stacks(pool, run, ranks)

    def debug(
        self, pool: str, rank: int, who: str, *, text: str = "", eof: bool = False
    ) -> Future[tuple[bytes, bool]]:
        # Who debugs a rank has it do what they type.
        return _refused()

    def on_host_key(self, ask: Ask) -> None:
        """Nobody is asked."""


def _refusal() -> UsageError:
    return UsageError("this only looks at pools (--read-only), and changes nothing")


def _refuse() -> NoReturn:
    raise _refusal()


def _refused() -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(_refusal())
    return future
