"""Arguments of ``Compute`` that older generations take, and what each comes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from ...model.older_words import Rules, heeded, refused, renamed, unheeded
from ...model.spec import NO_VOLUMES

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
    "retry": refused("no call is made again by itself: catch sky.RunError, and send it again"),
    "callbacks": unheeded("the app, and compute.metrics() and compute.alerts(run), show what happens", (), []),
    "url": refused(_NO_DAEMON),
    "database": refused(_NO_DAEMON),
}  # fmt: skip


def taken(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by the words of today, of what was given by older ones.

    Args:
        given: what ``Compute`` does not know by itself.

    Raises:
        TypeError: no generation has such an argument.
        SpecError: one is refused.
    """
    if unknown := given.keys() - RULES.keys():
        raise TypeError(f"sky.Compute takes no {' and no '.join(sorted(unknown))}")
    return heeded("sky.Compute", RULES, dict(given))
