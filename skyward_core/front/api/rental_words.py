"""What a script's pool says of machines that cost money: that they are rented, and for how much, before they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...model.capabilities import price_of
from ...views.events import PoolState
from .ending import tell

if TYPE_CHECKING:
    from ...model.spec import PoolSpec
    from ...pool.pool import Pool
    from ...views.events import Event


def tell_rental(spec: PoolSpec, pool: Pool) -> Callable[[], None]:
    """Say what is rented, and with each try where and at what price, until the start has failed; returns how to stop.

    Options cannot have it silent: nobody is to pay for machines and not know it.
    """
    least, most = spec.least_nodes, spec.most_nodes
    number = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    price = price_of(spec.provider)
    each = "" if price is None else f", ${price:,.2f}/h each"
    tell(
        f"pool {spec.name}: is about to rent {number} machine{'s' * (most != 1)} of {spec.provider.name}{each}"
    )

    def hear(event: Event) -> None:
        # What made it fail is told by the error.
        if isinstance(event, PoolState) and event.state == "starting" and event.detail and pool.is_starting:
            tell(f"pool {spec.name} starting: {event.detail}")

    return pool.news.subscribe(hear, None)
