"""What a person says of a launch, made into the pool that it asks for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..model.spec import Image, PoolSpec, Worker
from ..store.working_folder import workdir

if TYPE_CHECKING:
    from ..model.accelerators import Accelerator
    from ..providers.base import Provider


def provider_named(name: str | None, hosts: Sequence[str] | None = None) -> Provider:
    """A provider by its name, None for the embedded one; with hosts, or a group's name alone, SSH to those.

    Raises:
        UsageError: there is none of that name, it cannot be made of its name alone, or the hosts make no sense.
    """
    from .. import providers

    if hosts is None:
        return cast("Provider", providers.resolve(name))
    # A name alone may be a group's.
    return cast("Provider", providers.by_name("ssh")(hosts[0] if len(hosts) == 1 else list(hosts)))


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
        nodes=int(getattr(provider, "default_nodes", 1)) if nodes is None else nodes,
        accelerator=accelerator,
        image=Image(workdir=workdir(script)),
        plugins=tuple(plugins),
        worker=Worker(ranks_per_node=ranks_per_node),
    )
