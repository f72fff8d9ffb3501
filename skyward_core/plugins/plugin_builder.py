"""Plugins built from functions, as in older API generations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from skyward_core.model.errors import UsageError
from skyward_core.plugins.plugin import Plugin

if TYPE_CHECKING:
    from skyward_core.model.specs import Image, PoolSpec
    from skyward_core.runtime.instance_info_and_attempt import InstanceInfo

    Around = Callable[[InstanceInfo], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """Argument of functions that build a plugin. Replaces the cluster object of older API versions.

    Attributes:
        spec: The pool's specification.
    """

    spec: PoolSpec


@dataclass(frozen=True)
class BuiltPlugin(Plugin):
    """Plugin whose hooks are functions. Each method ``with_...`` returns a copy with another hook.

    Args:
        name: Name of the plugin, unique in a pool.
    """

    gang: ClassVar[bool] = False  # in older API versions, each process of a rank enters the plugin separately
    name: str = ""  # type: ignore[misc]  # a class variable in other plugins
    on_image: Callable[[Image, Any], Image] | None = None
    on_bootstrap: Callable[[Any], Sequence[Any]] | None = None
    on_function: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    on_app: Around | None = None
    on_process: Around | None = None
    on_client: Callable[[Any, Any], AbstractContextManager[object]] | None = None

    def with_image_transform(self, transform: Callable[[Image, Any], Image]) -> BuiltPlugin:
        """Return the plugin with a function that gets the image and the request, and returns the changed image."""
        return replace(self, on_image=transform)

    def with_bootstrap(self, factory: Callable[[Any], Sequence[Any]]) -> BuiltPlugin:
        """Return the plugin with a function that gets the request, and returns shell commands."""
        return replace(self, on_bootstrap=factory)

    def with_decorator(self, decorate: Callable[[Callable[..., Any]], Callable[..., Any]]) -> BuiltPlugin:
        """Return the plugin with a decorator of every function that ranks call."""
        return replace(self, on_function=decorate)

    def with_around_app(self, around: Around) -> BuiltPlugin:
        """Return the plugin with a context for each node. ``around`` gets the place of the node's first rank."""
        return replace(self, on_app=around)

    def with_around_process(self, around: Around) -> BuiltPlugin:
        """Return the plugin with a context for each worker. ``around`` gets the place of the worker's rank."""
        return replace(self, on_process=around)

    def with_around_client(self, around: Callable[[Any, Any], AbstractContextManager[object]]) -> BuiltPlugin:
        """Return the plugin with a client context while the pool is up. ``around`` gets the pool and the request."""
        return replace(self, on_client=around)

    def with_launcher(self, launcher: Any) -> BuiltPlugin:
        """Raise an error: the pool starts ranks itself.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            f"plugin {self.name}: with_launcher is not supported, because the pool starts ranks itself. The variables "
            "of torchrun are set for every broadcast; use with_around_process to run code before the function."
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
        return super().around_client(pool) if self.on_client is None else self.on_client(pool, PoolRequest(pool.spec))

    def _steps(self, steps: Iterable[Any]) -> Iterator[str]:
        for step in steps:
            if isinstance(step, str):
                yield step
            elif isinstance(step, list | tuple):
                yield from self._steps(step)
            else:
                raise UsageError(
                    f"plugin {self.name}: a bootstrap step must be a shell command as text, got {step!r:.60}"
                )


def around_app(name: str, around: Around) -> BuiltPlugin:
    """Return a plugin with one hook: a context that is entered once per node."""
    return BuiltPlugin(name).with_around_app(around)


def around_process(name: str, around: Around) -> BuiltPlugin:
    """Return a plugin with one hook: a context once per worker."""
    return BuiltPlugin(name).with_around_process(around)


def around_client(name: str, around: Callable[[Any, Any], AbstractContextManager[object]]) -> BuiltPlugin:
    """Return a plugin with one hook: a context on the client while the pool is up."""
    return BuiltPlugin(name).with_around_client(around)
