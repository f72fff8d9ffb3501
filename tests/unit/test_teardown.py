"""A teardown's word with each agent, without agents."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.pool import teardown


class FakeLink:
    """Its agent says goodbye, and the connection stays open."""

    node, up, finished, last_sizes, quiet = 0, True, False, None, 0.0

    told: tuple[str, ...] = ()

    def flush_acknowledgements(self) -> None:
        self.told += ("ack",)

    def send(self, header: dict[str, Any]) -> bool:
        self.told += (header["t"], *header["drop"])
        asyncio.get_running_loop().call_soon(self.bye)
        return True

    def bye(self) -> None:
        self.finished, self.last_sizes = True, {"r000.out": 7}


@pytest.mark.parametrize(
    "here, told", [(7, ""), (5, "2 bytes of the logs of node 0 did not arrive")], ids=["whole", "short"]
)
async def test_a_goodbye_is_the_last_that_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, here: int, told: str
) -> None:
    monkeypatch.setattr(teardown, "GOODBYE", 3600.0)
    archive, options = SimpleNamespace(cursors={"r000.out": here}), SimpleNamespace(grace=1.0)
    intake: Any = SimpleNamespace(behind=False)
    context: Any = SimpleNamespace(archive=archive, options=options)
    link: Any = FakeLink()
    async with asyncio.timeout(60):
        assert await teardown._say_goodbye(context, intake, ["ours"], link) == told
    assert link.told == ("ack", "shutdown", "ours")  # what is here, or of no use, is kept by nobody
