"""Having machines made, and trying again for as long as the pool is to wait where there are none to be had."""

from __future__ import annotations

import asyncio
import time

from ...model.errors import NoCapacity, TooFewHosts, what_of
from ...model.machine import Machine
from ...model.spec import PoolSpec
from ...providers.told import told
from ...views import events as ev
from ..context import PoolContext
from ..news import News
from .machine_python import with_python

PAUSES = (10.0, 300.0)  # seconds between two tries, at first and at most


async def machines(context: PoolContext, news: News, spec: PoolSpec) -> list[Machine]:
    """The machines of a pool that begins; what is asked for was written down under the pool's token, so that asking
    again makes nothing twice.

    Raises:
        NoCapacity: there are none, and the time is over.
        SkywardError: something that waiting would not change.
    """
    until, pause = time.monotonic() + float(spec.options.wait_for_capacity), PAUSES[0]
    while True:
        try:
            made = await told("create", context.name, context.provider.create(spec, context.token))
            return [with_python(each, context.row) for each in made]
        except TooFewHosts:  # there will be no more of them
            raise
        except NoCapacity as error:
            left = until - time.monotonic()
            if left <= 0:
                raise
            wait = min(pause, left)
            _say(context, news, what_of(error), wait, left)
            await asyncio.sleep(wait)
            pause = min(pause * 1.5, PAUSES[1])


def _say(context: PoolContext, news: News, why: str, wait: float, left: float) -> None:
    now = time.time()
    last = time.strftime("%Y-%m-%d %H:%M", time.localtime(now + left))
    news.complain(f"{why}; tried again until {last}")
    for node in range(len(context.view.nodes)):
        told = ev.NodePhase(
            pool=context.name, node=node, phase="requested", detail="none to be had", retry_at=now + wait
        )
        news.emit(told)
