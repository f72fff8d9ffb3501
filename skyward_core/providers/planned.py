"""What a pool's machines would be tried with, before anything is made."""

from __future__ import annotations

from ..model.capabilities import Plans
from ..model.offer import RentalPlan
from ..model.spec import PoolSpec
from ..transport.background_loop import submit


def planned(spec: PoolSpec) -> RentalPlan:
    """What a pool would rent, in the order in which it is tried; no attempts where it rents nothing.

    Asks the provider, from any thread but that of the pools.

    Raises:
        UsageError: nothing fits; says what comes nearest.
    """
    if not isinstance(spec.provider, Plans):
        return RentalPlan(nodes=spec.most_nodes, attempts=())
    return submit(spec.provider.plan(spec)).result()
