"""What a pool's machines would be tried with, before anything is made."""

from __future__ import annotations

from contextlib import nullcontext

from ..model.capabilities import Foresees, Plans
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
        PoolError: machines that are there already cannot be had now.
    """
    provider = spec.provider
    if not isinstance(provider, Plans | Foresees):
        return RentalPlan(nodes=spec.most_nodes, attempts=())

    async def ask() -> RentalPlan:
        with remembering() if may_remember else nullcontext():
            if isinstance(provider, Plans):
                return await provider.plan(spec)
            notes = await provider.foresee(spec)
            return RentalPlan(nodes=spec.most_nodes, attempts=(), notes=tuple(notes))

    return submit(ask()).result()
