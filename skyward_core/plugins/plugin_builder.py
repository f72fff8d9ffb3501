"""Plugins built from callables, as older API generations do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar

from skyward_core.model.errors import UsageError
from skyward_core.plugins.built_in.torch import Torch
from skyward_core.plugins.plugin import Plugin, enter_late
from skyward_core.runtime.instance_info import instance_info
from skyward_core.runtime.rendezvous import mentions_package

if TYPE_CHECKING:
    from skyward_core.model.specs import Image, PoolSpec
    from skyward_core.runtime.instance_info import InstanceInfo

    Around = Callable[[InstanceInfo], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """Stands for the machines in what such functions are given.

    Attributes:
        spec: all that was asked for.
    """

    spec: PoolSpec


@dataclass(frozen=True)
class BuiltPlugin(Plugin):
    """A plugin whose hooks are functions; each ``with_`` gives another one that has that hook, too.

    Args:
        name: how people name it; unique in a pool.
    """

    gang: ClassVar[bool] = False  # there, each process enters it by itself
    name: str = ""  # type: ignore[misc]  # of a class elsewhere
    on_image: Callable[[Image, Any], Image] | None = None
    on_bootstrap: Callable[[Any], Sequence[Any]] | None = None
    on_function: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    on_app: Around | None = None
    on_process: Around | None = None
    on_client: Callable[[Any, Any], AbstractContextManager[object]] | None = None

    def with_image_transform(self, transform: Callable[[Image, Any], Image]) -> BuiltPlugin:
        """With a function that is given the image and what was asked for, and gives another image."""
        return replace(self, on_image=transform)

    def with_bootstrap(self, factory: Callable[[Any], Sequence[Any]]) -> BuiltPlugin:
        """With a function that is given what was asked for, and gives shell commands."""
        return replace(self, on_bootstrap=factory)

    def with_decorator(self, decorate: Callable[[Callable[..., Any]], Callable[..., Any]]) -> BuiltPlugin:
        """With a decorator of every function that ranks call."""
        return replace(self, on_function=decorate)

    def with_around_app(self, around: Around) -> BuiltPlugin:
        """With a context once per node, which is given the place of the node's first rank."""
        return replace(self, on_app=around)

    def with_around_process(self, around: Around) -> BuiltPlugin:
        """With a context once per worker, which is given its rank's place."""
        return replace(self, on_process=around)

    def with_around_client(self, around: Callable[[Any, Any], AbstractContextManager[object]]) -> BuiltPlugin:
        """With a context of the client while the pool is up, which is given the pool and what was asked for."""
        return replace(self, on_client=around)

    def with_launcher(self, launcher: Any) -> BuiltPlugin:
        """Refused: ranks are started by the pool itself.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"plugin {self.name}: with_launcher is not to be had, for the pool itself starts ranks: what torchrun and "
            "its like set is set for every broadcast, and with_around_process runs before the function"
        )

    def transform(self, image: Image, pool_spec: PoolSpec) -> Image:
        return image if self.on_image is None else self.on_image(image, PoolRequest(pool_spec))

    def bootstrap(self, pool_spec: PoolSpec) -> Sequence[str]:
        return [] if self.on_bootstrap is None else [*self._steps(self.on_bootstrap(PoolRequest(pool_spec)))]

    def decorate(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        return fn if self.on_function is None else self.on_function(fn)

    def around_app(self, info: InstanceInfo) -> AbstractContextManager[object]:
        return super().around_app(info) if self.on_app is None else self.on_app(info)

    def around_process(self, info: InstanceInfo) -> AbstractContextManager[object]:
        return super().around_process(info) if self.on_process is None else self.on_process(info)

    def around_client(self, pool: Any) -> AbstractContextManager[object]:
        if self.on_client is None:
            return super().around_client(pool)
        return self.on_client(pool, PoolRequest(pool.spec))

    def _steps(self, steps: Iterable[Any]) -> Iterator[str]:
        for step in steps:
            if isinstance(step, str):
                yield step
            elif isinstance(step, list | tuple):
                yield from self._steps(step)
            else:
                raise UsageError(
                    f"plugin {self.name}: a step of its bootstrap is a shell command as text, not {step!r:.60}"
                )


def around_app(name: str, around: Around) -> BuiltPlugin:
    """A plugin of one hook: a context once per node."""
    return BuiltPlugin(name).with_around_app(around)


def around_process(name: str, around: Around) -> BuiltPlugin:
    """A plugin of one hook: a context once per worker."""
    return BuiltPlugin(name).with_around_process(around)


def around_client(name: str, around: Callable[[Any, Any], AbstractContextManager[object]]) -> BuiltPlugin:
    """A plugin of one hook: a context of the client while the pool is up."""
    return BuiltPlugin(name).with_around_client(around)


BRINGS = "__skyward_brings__"  # an attribute of functions that bring their plugins along


@dataclass(frozen=True)
class Automatic(Plugin):
    """Makes the process group at the first broadcast of a function whose code names ``torch.distributed``."""

    name: ClassVar[str] = "automatic"
    help: ClassVar[str] = "the process group of functions that use torch.distributed"

    def decorate(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        from inspect import isgeneratorfunction

        if getattr(fn, BRINGS, False) or not mentions_package(fn, "torch.distributed"):
            return fn
        if isgeneratorfunction(fn):

            @wraps(fn)
            def stream(*args: Any, **kwargs: Any) -> Any:
                with _ensure_process_group():
                    return (yield from fn(*args, **kwargs))

            return stream

        @wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            with _ensure_process_group():
                return fn(*args, **kwargs)

        return call


@contextmanager
def _ensure_process_group() -> Iterator[None]:
    """The group of all ranks for broadcasts; none for a task, which has a world of one rank."""
    if instance_info().world_size < 2:
        yield
        return
    enter_late((Torch(),))
    yield
