"""A script's pool of rented machines looks, once it is gone, for what is left in the accounts that it used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core import providers
from skyward_core.api.operators import tear_down
from skyward_core.client import leftover_cleanup
from skyward_core.model.errors import PoolError
from skyward_core.model.machines import Inventory, Leftover
from skyward_core.pool import leftover_verdicts
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import Receipt

OURS = Leftover("instance", "i-1", "here", "old", "t0", "mine", True, "me", is_machine=True, hourly=1.5)


class SweptAccount:
    """A provider whose account holds what a test says."""

    name = "cupboard"
    rents = True
    looks: list[bool]
    holds: Callable[[], Any]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SweptAccount:
        return cls()

    @classmethod
    def accounts(cls, used: list[SweptAccount]) -> list[SweptAccount]:
        return used[:1]

    async def inventory(self, *, everywhere: bool) -> Inventory:
        type(self).looks.append(everywhere)
        held = type(self).holds()
        return await held if asyncio.iscoroutine(held) else held  # type: ignore[no-any-return]

    async def remove(self, things: object) -> list[str]:
        raise AssertionError("nobody said so")


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[SweptAccount]:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(providers, "provider_class", lambda name: SweptAccount)
    SweptAccount.looks = []
    return SweptAccount


async def notes(capsys: pytest.CaptureFixture[str], provider: Any = None) -> tuple[str, ...]:
    with closing(Ledger()) as ledger:
        for token, name in (("t1", "p"), ("t2", "other")):
            if ledger.find_pool(name) is None:
                ledger.record_intent(token, name, {"provider": "cupboard"}, {})

        async def torn_down() -> Receipt:
            return Receipt("p", 1, (0,), (), 0.1, ("before",))

        context = SimpleNamespace(provider=provider or SweptAccount(), ledger=ledger)
        pool: Any = SimpleNamespace(name="p", row=ledger.pool("t1"), context=context, down=torn_down)
        receipt = await tear_down(pool)
    assert receipt.notes[0] == "before"
    assert capsys.readouterr().err == "".join(f"pool p: {note}\n" for note in receipt.notes[1:])
    return receipt.notes[1:]


async def test_what_is_ours_and_over_is_noted_and_nothing_else(
    account: type[SweptAccount], capsys: pytest.CaptureFixture[str]
) -> None:
    up = replace(OURS, id="i-up", pool="other", token="t2")
    expired = replace(up, id="i-late", expires=1.0)
    theirs = replace(OURS, id="i-theirs", ours=False, ledger="theirs")
    key = replace(OURS, id="k", what="key pair", is_machine=False, hourly=None)
    account.holds = lambda: Inventory((up, theirs))  # type: ignore[misc,assignment]
    assert await notes(capsys) == ()
    account.holds = lambda: Inventory((up, expired, theirs, key, OURS))  # type: ignore[misc,assignment]
    (note,) = await notes(capsys)
    assert note == (
        "2 machines ($3.00/h) and 1 other thing of pools that are over are still there "
        "(i-late in here, i-1 in here, k in here): the command `leftovers` removes it"
    )
    assert account.looks == [False, False]


async def test_unknown_is_told_as_unknown_and_waited_for_no_longer_than_it_may(
    account: type[SweptAccount], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftover_verdicts, "INVENTORY_TIMEOUT", 0.01)

    def refused() -> Inventory:
        raise PoolError("no credentials")

    for holds, said in (
        (lambda: Inventory((), {"mars": "far away"}), "mars (far away)"),
        (refused, "cupboard (no credentials)"),
        (lambda: asyncio.sleep(3600), "cupboard (no answer within 0.01 s)"),
    ):
        account.holds = holds  # type: ignore[misc,assignment]
        (note,) = await notes(capsys)
        assert note == f"whether anything else of pools that are over is left there is not known: {said}"


async def test_machines_that_cost_nothing_are_not_looked_for(
    account: type[SweptAccount], capsys: pytest.CaptureFixture[str]
) -> None:
    assert await notes(capsys, SimpleNamespace(name="local")) == () and account.looks == []


class SilentAccount(SweptAccount):
    """It never answers."""

    name = "mute"

    async def inventory(self, *, everywhere: bool) -> Inventory:
        await asyncio.sleep(3600)
        raise AssertionError


async def test_an_account_that_does_not_answer_hides_no_other(
    account: type[SweptAccount], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyward_core.providers.provider.QUERY_TIMEOUT", 0.05)
    account.holds = lambda: Inventory((OURS,))  # type: ignore[misc,assignment]
    with closing(Ledger()) as ledger:
        found = await leftover_cleanup.scan_accounts(ledger, [SilentAccount(), account(), SilentAccount()])
    assert [(each.thing.id, each.verdict, each.account) for each in found.removable] == [("i-1", "left", 1)]
    assert dict(found.unknown) == {
        "mute": "no answer within 60 s",
        "mute of account 3": "no answer within 60 s",
    }
