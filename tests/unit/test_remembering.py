"""What a form asks a provider for while somebody types may be a minute old; what a start asks for is not."""

from __future__ import annotations

from typing import Any

import pytest

from skyward_core.model.errors import SkywardError
from skyward_core.providers import provider
from skyward_core.providers.aws.boto_calls import Account, Calls
from skyward_core.providers.provider import RememberedAnswers, remembering


class CountedCalls(Calls):
    """Answers each call with its number."""

    def __init__(self) -> None:
        super().__init__(Account())
        self.asked: list[str] = []
        self.error: Exception | None = None

    def _call(self, service: str, region: str, action: str, answered: Any, params: Any) -> dict[str, Any]:
        self.asked.append(action)
        if self.error is not None:
            raise self.error
        return {"number": len(self.asked)}


async def number(calls: Calls, action: str = "describe_images", region: str = "here", **params: Any) -> int:
    return int((await calls.call("ec2", region, action, **params))["number"])


async def test_only_who_may_remember_is_answered_by_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = CountedCalls()
    with remembering():
        assert [await number(calls), await number(calls)] == [1, 1]
        assert await number(calls, region="there") == 2 and await number(calls, Owners=["me"]) == 3
        assert [await number(calls, "describe_instances") for _ in range(2)] == [4, 5], "machines never"
    assert await number(calls) == 6, "a start asks anew"
    with remembering():
        assert await number(calls) == 6, "and what it was told counts from then on"
        monkeypatch.setattr(provider, "AGE", 0.0)
        assert await number(calls) == 7


async def test_errors_and_other_accounts_are_not_remembered() -> None:
    calls = CountedCalls()
    with remembering():
        assert await number(calls) == 1
        calls._forget()
        assert await number(calls) == 2
        calls.error = SkywardError("no")
        for _ in range(2):
            with pytest.raises(SkywardError):
                await number(calls, Owners=["me"])
    assert len(calls.asked) == 4


def test_what_is_kept_is_bounded() -> None:
    kept = RememberedAnswers()
    for question in range(2 * provider.MOST):
        kept.keep(question, question + 1)
    with remembering():
        assert kept.find(0) is None and kept.find(2 * provider.MOST - 1) == 2 * provider.MOST
        assert len([each for each in range(2 * provider.MOST) if kept.find(each)]) == provider.MOST
