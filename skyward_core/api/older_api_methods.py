"""Arguments and methods of older API generations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict, TypeVar

from skyward_core.api.active_pool import require_call, require_group
from skyward_core.model.errors import UsageError
from skyward_core.model.function import PendingFunction, PendingGroup
from skyward_core.model.older_api_arguments import (
    NO_RETRY,
    Rules,
    apply_rules,
    check_unknown_arguments,
    ignored,
    rejected,
    renamed,
)
from skyward_core.model.specs import NO_VOLUMES, Image, Options, Worker

if TYPE_CHECKING:
    from skyward_core.model.run_future import RunFuture
    from skyward_core.plugins.redis_dict_queue_lock import (
        SharedBarrier,
        SharedCounter,
        SharedDict,
        SharedLock,
        SharedQueue,
        SharedSet,
        SharedState,
    )


_NO_DAEMON = "there is no daemon: a pool is this process's own, and others come to it by sky.attach(name)"


class DeprecatedArguments(TypedDict, total=False):
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
    "delete_on_exit": rejected(
        "a pool ends with its block; the command `run` brings one up that stays, and sky.attach(name) comes back to it",
        True,
    ),
    "volumes": rejected(NO_VOLUMES, (), []),
    "ports": rejected("no port is brought here by the pool itself: the command `forward POOL PORT` does that", (), []),
    "retry": ignored(NO_RETRY),
    "callbacks": ignored("the app, and compute.metrics() and compute.alerts(run), show what happens", (), []),
    "url": rejected(_NO_DAEMON),
    "database": rejected(_NO_DAEMON),
    "daemon": rejected(_NO_DAEMON, False),
    "attach": rejected("sky.attach(name) comes to a pool that is up"),
}  # fmt: skip


_ACCELERATOR_ARGUMENTS = dict.fromkeys(("gpu", "gpus"), 'accelerator="A100:8"')  # whose nearest word is another thing


ATTACHED_RULES: Rules = {
    "url": rejected(_NO_DAEMON),
    "database": rejected(_NO_DAEMON),
    "console": ignored("its lines are printed as whoever made the pool has said", True),
    "callbacks": RULES["callbacks"],
    "delete_on_exit": rejected("a pool that is come to outlives the block: compute.down() takes it down", False),
}
"""What ``Compute.attached`` takes besides a name."""


def translate_arguments(given: Mapping[str, Any], own: Collection[str]) -> dict[str, Any]:
    """Arguments by the words of today, of what was given by older ones.

    Args:
        given: what ``Compute`` does not know by itself.
        own: names of what it knows.

    Raises:
        TypeError: no generation has such an argument.
        SpecError: one is refused.
    """
    for name in sorted(given.keys() - RULES.keys()):
        if name in _ACCELERATOR_ARGUMENTS:
            raise TypeError(f"sky.Compute takes no {name!r}: {_ACCELERATOR_ARGUMENTS[name]} is what it takes")
        for kind in (Options, Image, Worker):
            if name in kind.__dataclass_fields__:
                says = f"sky.{kind.__name__}"
                raise TypeError(
                    f"sky.Compute takes no {name!r}, which {says} does: {says[4:].lower()}={says}({name}=...)"
                )
        check_unknown_arguments("sky.Compute", [name], [*own, *RULES])
    return apply_rules("sky.Compute", RULES, dict(given))


T = TypeVar("T")
R = TypeVar("R")


class DeprecatedMethods:
    """Each is another word for what ``Compute`` and an attached pool do, or says what to do instead."""

    if TYPE_CHECKING:

        @property
        def shared(self) -> SharedState: ...

        def submit(self, pending: PendingFunction[Any]) -> RunFuture[Any]: ...

        def run_group(self, group: PendingGroup[Any]) -> Any: ...

        def run_one(self, pending: PendingFunction[Any]) -> Any: ...

    def run_parallel(self, group: PendingGroup[R]) -> R:
        """The second generation's word for ``group >> compute``.

        Args:
            group: the calls.
        """
        value: R = self.run_group(require_group(group, "compute.run_parallel"))
        return value

    def start(self, pending: PendingFunction[T]) -> RunFuture[T]:
        """The third generation's word for ``pending > compute``.

        Args:
            pending: the call.
        """
        return self.submit(require_call(pending, "compute.start"))

    def gather(self, group: PendingGroup[Any]) -> list[Any]:
        """The third generation's word for ``group >> compute``.

        Args:
            group: the calls.
        """
        return list(self.run_group(require_group(group, "compute.gather")))

    def gather_stream(self, group: PendingGroup[Any]) -> Iterator[Any]:
        """The third generation's word for ``sky.gather(..., stream=True) >> compute``.

        Args:
            group: the calls.
        """
        group = require_group(group, "compute.gather_stream")
        values: Iterator[Any] = self.run_group(PendingGroup(group.items, True, group.ordered))
        return values

    def stream(self, pending: PendingFunction[Iterator[T]]) -> Iterator[T]:
        """The third generation's word for ``pending >> compute`` with a generator function.

        Args:
            pending: the call.
        """
        values: Iterator[T] = self.run_one(require_call(pending, "compute.stream"))
        return values

    def dict(self, name: str, consistency: str | None = None) -> SharedDict:
        """The second generation's word for ``compute.shared.dict(name)``.

        Args:
            name: any text.
            consistency: there is one server, and so the strongest always.
        """
        return self.shared.dict(name)

    def set(self, name: str, consistency: str | None = None) -> SharedSet:
        """The second generation's word for ``compute.shared.set(name)``.

        Args:
            name: any text.
            consistency: there is one server, and so the strongest always.
        """
        return self.shared.set(name)

    def counter(self, name: str, consistency: str | None = None) -> SharedCounter:
        """The second generation's word for ``compute.shared.counter(name)``.

        Args:
            name: any text.
            consistency: there is one server, and so the strongest always.
        """
        return self.shared.counter(name)

    def queue(self, name: str) -> SharedQueue:
        """The second generation's word for ``compute.shared.queue(name)``.

        Args:
            name: any text.
        """
        return self.shared.queue(name)

    def lock(self, name: str, timeout: float | None = 30) -> SharedLock:
        """The second generation's word for ``compute.shared.lock(name)``, with its limit.

        Args:
            name: any text.
            timeout: seconds that a ``with`` block waits at most; None for no limit.
        """
        return self.shared.lock(name, timeout)

    def barrier(self, name: str, n: int) -> SharedBarrier:
        """The second generation's word for ``compute.shared.barrier(name, n)``.

        Args:
            name: any text.
            n: how many meet there.
        """
        return self.shared.barrier(name, n)

    def resize(self, *nodes: Any) -> NoReturn:
        """Refused: a pool has as many machines as it was started with.

        Args:
            *nodes: how many.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "compute.resize(...) is not to be had: a pool has as many machines as it was started with; leave the block "
            "and bring another up, nodes=sky.Nodes(min=2, max=8) for as many as can be had"
        )

    def update(self, image: Any) -> NoReturn:
        """Refused: a pool keeps its image.

        Args:
            image: the other one.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "compute.update(image) is not to be had: a pool keeps its image; what the script defines travels anew with "
            "every call, and another image wants another pool"
        )

    def events(self) -> NoReturn:
        """Refused: a pool's events are read otherwise.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "compute.events() is not to be had: sky.attach(name).view shows what the pool is at, compute.metrics() "
            "what it measures, and the app both as they change"
        )
