"""Arguments of ``Compute`` that older generations take, and what each comes to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypedDict

from ...model.misuse_words import refuse_unknown
from ...model.older_words import NO_RETRY, Rules, heeded, refused, renamed, unheeded
from ...model.spec import NO_VOLUMES, Image, Options, Worker

_NO_DAEMON = "there is no daemon: a pool is this process's own, and others come to it by sky.attach(name)"


class OlderArguments(TypedDict, total=False):
    """What ``Compute`` takes besides: heeded, or said to go unheeded, or refused in words."""

    cpus: float | None
    console: bool | str
    executor: Any
    delete_on_exit: bool
    volumes: Sequence[Any]
    ports: Sequence[Any]
    retry: Callable[[Any, int], bool] | None
    callbacks: Sequence[Any]
    url: str | None
    database: Any
    daemon: bool | None
    attach: str | None


RULES: Rules = {
    "cpus": renamed("vcpus"),
    "console": renamed("console"),
    "executor": renamed("worker"),
    "delete_on_exit": refused(
        "a pool ends with its block; the command `run` brings one up that stays, and sky.attach(name) comes back to it",
        True,
    ),
    "volumes": refused(NO_VOLUMES, (), []),
    "ports": refused("no port is brought here by the pool itself: the command `forward POOL PORT` does that", (), []),
    "retry": unheeded(NO_RETRY),
    "callbacks": unheeded("the app, and compute.metrics() and compute.alerts(run), show what happens", (), []),
    "url": refused(_NO_DAEMON),
    "database": refused(_NO_DAEMON),
    "daemon": refused(_NO_DAEMON, False),
    "attach": refused("sky.attach(name) comes to a pool that is up"),
}  # fmt: skip


_ALIKE = dict.fromkeys(("gpu", "gpus"), 'accelerator="A100:8"')  # whose nearest word is another thing


ATTACHED: Rules = {
    "url": refused(_NO_DAEMON),
    "database": refused(_NO_DAEMON),
    "console": unheeded("its lines are printed as whoever made the pool has said", True),
    "callbacks": RULES["callbacks"],
    "delete_on_exit": refused(
        "a pool that is come to outlives the block: compute.down() takes it down", False
    ),
}
"""What ``Compute.attached`` takes besides a name."""


def taken(given: Mapping[str, Any], own: Collection[str]) -> dict[str, Any]:
    """Arguments by the words of today, of what was given by older ones.

    Args:
        given: what ``Compute`` does not know by itself.
        own: names of what it knows.

    Raises:
        TypeError: no generation has such an argument.
        SpecError: one is refused.
    """
    for name in sorted(given.keys() - RULES.keys()):
        if name in _ALIKE:
            raise TypeError(f"sky.Compute takes no {name!r}: {_ALIKE[name]} is what it takes")
        for kind in (Options, Image, Worker):
            if name in kind.__dataclass_fields__:
                says = f"sky.{kind.__name__}"
                raise TypeError(
                    f"sky.Compute takes no {name!r}, which {says} does: {says[4:].lower()}={says}({name}=...)"
                )
        refuse_unknown("sky.Compute", [name], [*own, *RULES])
    return heeded("sky.Compute", RULES, dict(given))
