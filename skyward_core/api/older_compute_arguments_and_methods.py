"""Arguments and methods of ``sky.Compute`` in older API generations.

Scripts written for older API versions keep running: each name is translated, ignored with a warning, or rejected with a
replacement.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict, TypeVar

from skyward_core.api.active_pool_and_operand_checks import require_call, require_group
from skyward_core.model.deprecated_and_unknown_arguments import (
    NO_RETRY,
    Rules,
    apply_rules,
    check_unknown_arguments,
    ignored,
    rejected,
    renamed,
)
from skyward_core.model.errors import UsageError
from skyward_core.model.function import PendingFunction, PendingGroup
from skyward_core.model.specs import NO_VOLUMES, Image, Options, Worker

if TYPE_CHECKING:
    from skyward_core.model.run_future import RunFuture
    from skyward_core.plugins import redis_shared_state_client as shared_state


_NO_DAEMON = "there is no daemon: this process owns its pools, and other processes use sky.attach(name)"


class DeprecatedArguments(TypedDict, total=False):
    """Arguments of older API generations: translated, ignored with a warning, or rejected with a replacement."""

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
        "a pool ends with its block; the command `run` starts a pool that stays up, for sky.attach(name)",
        True,
    ),
    "volumes": rejected(NO_VOLUMES, (), []),
    "ports": rejected("a pool forwards no ports by itself; use the command `forward POOL PORT`", (), []),
    "retry": ignored(NO_RETRY),
    "callbacks": ignored("use the app, compute.metrics() or compute.alerts(run) instead", (), []),
    "url": rejected(_NO_DAEMON),
    "database": rejected(_NO_DAEMON),
    "daemon": rejected(_NO_DAEMON, False),
    "attach": rejected("use sky.attach(name) for a pool that is up"),
}  # fmt: skip


# Unknown arguments with a fixed suggestion, because the existing argument of the most similar name has another meaning.
_ACCELERATOR_ARGUMENTS = dict.fromkeys(("gpu", "gpus"), 'accelerator="A100:8"')


# Further arguments of ``Compute.attached``.
ATTACHED_RULES: Rules = {
    "url": rejected(_NO_DAEMON),
    "database": rejected(_NO_DAEMON),
    "console": ignored("the pool's creator decides whether output is printed", True),
    "callbacks": RULES["callbacks"],
    "delete_on_exit": rejected("an attached pool outlives the block; compute.down() tears it down", False),
}


def translate_arguments(given: Mapping[str, Any], own: Collection[str]) -> dict[str, Any]:
    """Return the current arguments for arguments of older API versions.

    Args:
        given: Arguments that ``Compute`` does not declare.
        own: Names of the arguments that ``Compute`` declares.

    Raises:
        TypeError: If no generation has such an argument.
        SpecError: If an argument is rejected.
    """
    for name in sorted(given.keys() - RULES.keys()):
        if name in _ACCELERATOR_ARGUMENTS:
            raise TypeError(f"sky.Compute has no argument {name!r}. Use {_ACCELERATOR_ARGUMENTS[name]}.")
        for kind in (Options, Image, Worker):
            if name in kind.__dataclass_fields__:
                owner = f"sky.{kind.__name__}"
                raise TypeError(
                    f"sky.Compute has no argument {name!r}; {owner} has. Use {owner[4:].lower()}={owner}({name}=...)."
                )
        check_unknown_arguments("sky.Compute", [name], [*own, *RULES])
    return apply_rules("sky.Compute", RULES, dict(given))


T = TypeVar("T")
R = TypeVar("R")


class DeprecatedMethods:
    """Methods of older API versions: aliases of methods of pools, or errors that name the replacement."""

    if TYPE_CHECKING:

        @property
        def shared(self) -> shared_state.SharedState: ...

        def submit(self, pending: PendingFunction[Any]) -> RunFuture[Any]: ...

        def run_group(self, group: PendingGroup[Any]) -> Any: ...

        def run_one(self, pending: PendingFunction[Any]) -> Any: ...

    def run_parallel(self, group: PendingGroup[R]) -> R:
        """Run several calls: the second generation's name of ``group >> compute``.

        Args:
            group: The calls.
        """
        value: R = self.run_group(require_group(group, "compute.run_parallel"))
        return value

    def start(self, pending: PendingFunction[T]) -> RunFuture[T]:
        """Start a call without waiting: the third generation's name of ``pending > compute``.

        Args:
            pending: The call.
        """
        return self.submit(require_call(pending, "compute.start"))

    def gather(self, group: PendingGroup[Any]) -> list[Any]:
        """Run several calls: the third generation's name of ``group >> compute``.

        Args:
            group: The calls.
        """
        return list(self.run_group(require_group(group, "compute.gather")))

    def gather_stream(self, group: PendingGroup[Any]) -> Iterator[Any]:
        """Iterate over the values of several calls: the third generation's name of ``sky.gather(..., stream=True) >>
        compute``.

        Args:
            group: The calls.
        """
        group = require_group(group, "compute.gather_stream")
        values: Iterator[Any] = self.run_group(PendingGroup(group.items, True, group.ordered))
        return values

    def stream(self, pending: PendingFunction[Iterator[T]]) -> Iterator[T]:
        """Iterate over the values of a generator call: the third generation's name of ``pending >> compute``.

        Args:
            pending: The call.
        """
        values: Iterator[T] = self.run_one(require_call(pending, "compute.stream"))
        return values

    def dict(self, name: str, consistency: str | None = None) -> shared_state.SharedDict:
        """Return a shared dict: the second generation's name of ``compute.shared.dict(name)``.

        Args:
            name: Any text.
            consistency: Ignored. The single server is always strongly consistent.
        """
        return self.shared.dict(name)

    def set(self, name: str, consistency: str | None = None) -> shared_state.SharedSet:
        """Return a shared set: the second generation's name of ``compute.shared.set(name)``.

        Args:
            name: Any text.
            consistency: Ignored. The single server is always strongly consistent.
        """
        return self.shared.set(name)

    def counter(self, name: str, consistency: str | None = None) -> shared_state.SharedCounter:
        """Return a shared counter: the second generation's name of ``compute.shared.counter(name)``.

        Args:
            name: Any text.
            consistency: Ignored. The single server is always strongly consistent.
        """
        return self.shared.counter(name)

    def queue(self, name: str) -> shared_state.SharedQueue:
        """Return a shared queue: the second generation's name of ``compute.shared.queue(name)``.

        Args:
            name: Any text.
        """
        return self.shared.queue(name)

    def lock(self, name: str, timeout: float | None = 30) -> shared_state.SharedLock:
        """Return a shared lock: the second generation's name of ``compute.shared.lock(name)``, with its time limit.

        Args:
            name: Any text.
            timeout: Maximum seconds that a ``with`` block waits. None for no limit.
        """
        return self.shared.lock(name, timeout)

    def barrier(self, name: str, n: int) -> shared_state.SharedBarrier:
        """Return a shared barrier: the second generation's name of ``compute.shared.barrier(name, n)``.

        Args:
            name: Any text.
            n: Number of participants.
        """
        return self.shared.barrier(name, n)

    def resize(self, *nodes: Any) -> NoReturn:
        """Raise an error: a pool keeps the number of machines that it was started with.

        Args:
            *nodes: Ignored.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            "compute.resize(...) is not supported: a pool keeps the number of machines that it was started with. "
            "Start another pool, with nodes=sky.Nodes(min=2, max=8) to accept any number in a range."
        )

    def update(self, image: Any) -> NoReturn:
        """Raise an error: a pool keeps its image.

        Args:
            image: Ignored.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            "compute.update(image) is not supported: a pool keeps its image. Every call sends the script's current "
            "definitions; start another pool to use another image."
        )

    def events(self) -> NoReturn:
        """Raise an error: a pool has no event iterator.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            "compute.events() is not supported. Use sky.attach(name).view for the pool's state, compute.metrics() "
            "for metrics, or the app for both."
        )
