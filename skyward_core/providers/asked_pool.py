"""The pool that is asked for: what was said of it, and what holds where nothing was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..model.spec import Image, Options, PoolSpec, Worker, made_up_name
from ..model.wrong_field import of_field
from ..plugins.base import check_plugins
from . import resolve


def pool_spec(
    script: str,
    *,
    name: str | None = None,
    provider: Any = None,
    nodes: int | None = None,
    accelerator: Any = None,
    image: Image | None = None,
    plugins: Sequence[Any] = (),
    worker: Worker | None = None,
    options: Options | None = None,
) -> PoolSpec:
    """All that a pool is asked for.

    Args:
        script: what wants the pool, which is called after it where it has no name.

    The others are those of ``sky.Compute``.

    Raises:
        SkywardError: a value makes no sense; says of which field.
    """
    with of_field("provider"):
        provider = resolve(provider)
    with of_field("plugins"):
        check_plugins(plugins)
    # What only some pools need is imported for these alone: somebody waits for the start.
    if accelerator is not None:
        from ..model import accelerators

        with of_field("accelerator"):
            accelerator = accelerators.resolve(accelerator)
    if nodes is None:
        from ..model.capabilities import default_nodes

        nodes = default_nodes(provider)
    return PoolSpec(
        name=name or made_up_name(script),
        provider=provider,
        nodes=nodes,
        accelerator=accelerator,
        image=image or Image(),
        plugins=tuple(plugins),
        worker=worker or Worker(),
        options=options or Options(),
    )
