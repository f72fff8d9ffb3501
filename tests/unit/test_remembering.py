"""What a form asks a provider for while somebody types may be a minute old; what a start asks for is not."""

from __future__ import annotations

from typing import Any

import pytest

from skyward_core.model.errors import SkywardError
from skyward_core.providers import provider
from skyward_core.providers.aws.boto_calls import AwsAccount, AwsCalls
from skyward_core.providers.provider import AnswerCache, use_cached_answers


class CountedCalls(AwsCalls):
    """Answers each call with its number."""

    def __init__(self) -> None:
        super().__init__(AwsAccount())
        self.asked: list[str] = []
        self.error: Exception | None = None

    def _call(self, service: str, region: str, action: str, answered: Any, params: Any) -> dict[str, Any]:
        self.asked.append(action)
        if self.error is not None:
            raise self.error
        return {"number": len(self.asked)}


async def number(calls: AwsCalls, action: str = "describe_images", region: str = "here", **params: Any) -> int:
    return int((await calls.call("ec2", region, action, **params))["number"])


async def test_only_who_may_remember_is_answered_by_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = CountedCalls()
    with use_cached_answers():
        assert [await number(calls), await number(calls)] == [1, 1]
        assert await number(calls, region="there") == 2 and await number(calls, Owners=["me"]) == 3
        assert [await number(calls, "describe_instances") for _ in range(2)] == [4, 5], "machines never"
    assert await number(calls) == 6, "a start asks anew"
    with use_cached_answers():
        assert await number(calls) == 6, "and what it was told counts from then on"
        monkeypatch.setattr(provider, "CACHE_TTL", 0.0)
        assert await number(calls) == 7


async def test_errors_and_other_accounts_are_not_remembered() -> None:
    calls = CountedCalls()
    with use_cached_answers():
        assert await number(calls) == 1
        calls._reset_session()
        assert await number(calls) == 2
        calls.error = SkywardError("no")
        for _ in range(2):
            with pytest.raises(SkywardError):
                await number(calls, Owners=["me"])
    assert len(calls.asked) == 4


def test_what_is_kept_is_bounded() -> None:
    kept = AnswerCache()
    for question in range(2 * provider.MAX_CACHED_ANSWERS):
        kept.put(question, question + 1)
    with use_cached_answers():
        assert kept.get(0) is None and kept.get(2 * provider.MAX_CACHED_ANSWERS - 1) == 2 * provider.MAX_CACHED_ANSWERS
        assert (
            len([each for each in range(2 * provider.MAX_CACHED_ANSWERS) if kept.get(each)])
            == provider.MAX_CACHED_ANSWERS
        )
