"""What a person says of a launch, made into the pool that it asks for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..model.capabilities import default_nodes
from ..model.spec import Image, PoolSpec, Worker
from ..store.working_folder import workdir

if TYPE_CHECKING:
    from ..model.accelerators import Accelerator


def pool_spec(
    script: Path,
    *,
    name: str,
    provider: Any,
    nodes: int | None = None,
    ranks_per_node: Any = 1,
    accelerator: Accelerator | None = None,
    plugins: Sequence[Any] = (),
) -> PoolSpec:
    """The pool on which a script's ranks find what lies beside it.

    Args:
        nodes: how many; None for as many as the provider gives where nobody says.

    Raises:
        SpecError: a value makes no sense; says of which field.
    """
    return PoolSpec(
        name=name,
        provider=provider,
        nodes=default_nodes(provider) if nodes is None else nodes,
        accelerator=accelerator,
        image=Image(workdir=workdir(script)),
        plugins=tuple(plugins),
        worker=Worker(ranks_per_node=ranks_per_node),
    )
