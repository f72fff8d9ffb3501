"""The client's way to what a pool shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.errors import PoolError
from ...plugins.support.shared_state import SharedState
from ...plugins.support.shared_way import SharedWay
from ...transport.background_loop import submit

if TYPE_CHECKING:
    from ...plugins.built_in.shared import Shared
    from ...pool.pool import Pool


def shared_of(pool: Pool, plugin: Shared) -> SharedState:
    """What the pool shares, reached from here.

    Args:
        plugin: the pool's own, with its password.
    """
    at: list[tuple[str, int]] = []

    def find() -> tuple[str, int]:
        if not at:
            head = pool.context.links[0]
            try:
                at.append(
                    submit(head.transport.way_to(head.welcome["address"], plugin.port_of(pool.name))).result()
                )
            except OSError as error:
                raise PoolError(
                    f"there is no way to the shared state of pool {pool.name}: {error}"
                ) from error
        return at[0]

    return SharedState(SharedWay(pool.name, plugin.token, plugin.papers[0], find))
