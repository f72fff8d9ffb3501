"""What a pool's machines would be tried with, before anything is made."""

from __future__ import annotations

from contextlib import nullcontext

from ..model.capabilities import Plans
from ..model.offer import RentalPlan
from ..model.spec import PoolSpec
from ..transport.background_loop import submit
from .remembering import remembering


def planned(spec: PoolSpec, *, may_remember: bool = False) -> RentalPlan:
    """What a pool would rent, in the order in which it is tried; no attempts where it rents nothing.

    Asks the provider, from any thread but that of the pools.

    Args:
        may_remember: whether what the provider said a minute ago will do, as for a form while somebody types.

    Raises:
        UsageError: nothing fits; says what comes nearest.
    """
    if not isinstance(spec.provider, Plans):
        return RentalPlan(nodes=spec.most_nodes, attempts=())

    async def ask() -> RentalPlan:
        with remembering() if may_remember else nullcontext():
            found: RentalPlan = await spec.provider.plan(spec)
            return found

    return submit(ask()).result()
