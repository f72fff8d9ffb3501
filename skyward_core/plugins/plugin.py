"""The plugin protocol and its hooks.

Standard library only: a node's workers import it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from skyward_core.model.errors import SkywardError, UsageError
from skyward_core.model.misuse_errors import StrictKeywords
from skyward_core.runtime.instance_info import instance_info, place_in_pool

if TYPE_CHECKING:
    from skyward_core.model.specs import Image, PipIndex, PoolSpec
    from skyward_core.runtime.instance_info import InstanceInfo


class PluginError(SkywardError):
    """A plugin's hook raised; the hook's own exception is the cause.

    Attributes:
        plugin: name of the plugin.
        hook: name of its hook.
    """

    def __init__(self, message: str, plugin: str = "", hook: str = "") -> None:
        super().__init__(message)
        self.plugin = plugin
        self.hook = hook


class Plugin(StrictKeywords):
    """What a plugin may do; every hook does nothing unless overridden.

    A plugin is a small value (a frozen dataclass serves well). It is made on the client and pickled to the
    nodes, so it holds parameters only, and imports its framework inside its hooks.

    Attributes:
        name: how people name it; unique in a pool.
        help: what it is for, in a line, where plugins are listed.
        place: where it stands among those that come with this library, from 1.
        requires: names of plugins that must be in the pool too, before this one.
        conflicts: names of plugins that must not be in the same pool.
        gang: whether ``around_process`` needs the ranks of the gang together, and so is entered only in each
            rank's own worker. Where it is False, the workers that a rank has besides for tasks
            (``Worker(concurrency=...)``) enter it too.
        needs_peers: what its ranks need one another for, in words ("a process group of all ranks"). A pool of
            standalone workers (``Options(cluster=False)``) with more than one rank refuses it, with that reason.
            Empty for a plugin that works on each rank by itself.
    """

    name: ClassVar[str] = ""
    help: ClassVar[str] = ""
    place: ClassVar[int] = 0
    requires: ClassVar[Sequence[str]] = ()
    conflicts: ClassVar[Sequence[str]] = ()
    gang: ClassVar[bool] = True
    needs_peers: str = ""

    @property
    def joins(self) -> bool:
        """Whether ``around_process`` makes one world of the gang's ranks, such as a process group.

        Tasks then run in another process of their rank, which enters the plugin with a world of one rank. By default,
        plugins with ``gang`` and ``needs_peers`` do.
        """
        return self.gang and bool(self.needs_peers)

    @staticmethod
    def create(name: str) -> Any:
        """A plugin that is built of functions, as older generations have it: ``create("mine").with_decorator(f)``.

        Args:
            name: how people name it; unique in a pool.
        """
        return import_module(f"{__package__}.plugin_builder").BuiltPlugin(name)

    def secrets(self) -> Sequence[str]:
        """Values that are blanked, wherever they appear, in logs, summaries, errors and events."""
        return ()

    def transform(self, image: Image, pool_spec: PoolSpec) -> Image:
        """On the client, before anything is created: the image with what this plugin needs added.

        Args:
            image: as it was asked for, and as the plugins before this one left it.
            pool_spec: all that was asked for.
        """
        return image

    def bootstrap(self, pool_spec: PoolSpec) -> Sequence[str]:
        """Shell commands that prepare a node, run after the image's own. They are kept: no secrets.

        Args:
            pool_spec: all that was asked for.
        """
        return ()

    def decorate(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The function that a rank calls in place of the person's own; the first plugin of a pool is the outermost.

        Args:
            fn: the function as the plugins after this one left it.
        """
        return fn

    def around_app(self, info: InstanceInfo) -> AbstractContextManager[object]:
        """Once per node, while it is up: entered before its first worker enters ``around_process``, left after
        its workers have ended.

        It runs in a process of its own, that all ranks of the node and all runs share: servers and caches for
        them belong here, variables and imports for them do not.

        Args:
            info: the place of the node's first rank.
        """
        return nullcontext()

    def around_process(self, info: InstanceInfo) -> AbstractContextManager[object]:
        """Once per worker: entered before its first task, left at its end.

        Args:
            info: the rank's place in its pool.
        """
        return nullcontext()

    def around_client(self, pool: Any) -> AbstractContextManager[object]:
        """On the client, while the pool is up.

        Args:
            pool: the ``Compute`` that it belongs to.
        """
        return nullcontext()


def check_plugins(plugins: Iterable[object]) -> tuple[Plugin, ...]:
    """The plugins as a tuple, once they are known to go together.

    Args:
        plugins: as they were asked for, in order of entry.

    Raises:
        UsageError: one is not a plugin, has no name, comes twice, misses what it requires or conflicts.
    """
    seen: dict[str, Plugin] = {}
    for plugin in plugins:
        if not isinstance(plugin, Plugin):
            hint = f"; call it: {plugin.__name__}()" if isinstance(plugin, type) else ""
            if isinstance(plugin, str) and plugin.isidentifier():
                hint = f"; write sky.plugins.{plugin}()"
            raise UsageError(f"{plugin!r} is not a plugin{hint}")
        if not plugin.name:
            raise UsageError(f"{type(plugin).__name__} has no name; give the class a `name`")
        if plugin.name in seen:
            raise UsageError(f"plugin {plugin.name} is given twice; keep one")
        for other in plugin.requires:
            if other not in seen:
                raise UsageError(f"plugin {plugin.name} needs plugin {other} before it: plugins=[{other}, ...]")
        seen[plugin.name] = plugin
    for plugin in seen.values():
        for other in plugin.conflicts:
            if other in seen:
                raise UsageError(f"plugins {plugin.name} and {other} do not go together; keep one")
    return tuple(seen.values())


def check_standalone(plugins: Iterable[Plugin]) -> None:
    """Plugins for ranks that know no peers.

    Raises:
        UsageError: one needs them; says what for, and what to do.
    """
    for plugin in plugins:
        if plugin.needs_peers:
            raise UsageError(
                f"plugin {plugin.name} needs the ranks to reach one another, for {plugin.needs_peers}, and with "
                "Options(cluster=False) workers stand alone: leave cluster=False out, or the plugin, or have a single "
                "rank (nodes=1, ranks_per_node=1)"
            )


def transform_image(plugins: Iterable[Plugin], image: Image, pool_spec: PoolSpec) -> Image:
    """The image as all plugins, in order, want it.

    Raises:
        PluginError: names the plugin that raised.
    """
    for plugin in plugins:
        with _wrap_errors(plugin, "transform"):
            image = plugin.transform(image, pool_spec)
    return image


def bootstrap_steps(plugins: Iterable[Plugin], pool_spec: PoolSpec) -> tuple[str, ...]:
    """The shell commands of all plugins, in order.

    Raises:
        PluginError: names the plugin that raised.
    """
    steps: list[str] = []
    for plugin in plugins:
        with _wrap_errors(plugin, "bootstrap"):
            steps.extend(plugin.bootstrap(pool_spec))
    return tuple(steps)


def decorate_function(plugins: Sequence[Plugin], fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function with every plugin's decoration; the first plugin is the outermost.

    Raises:
        PluginError: names the plugin that raised.
    """
    for plugin in reversed(plugins):
        with _wrap_errors(plugin, "decorate"):
            fn = plugin.decorate(fn)
    return fn


def enter_app(plugins: Iterable[Plugin], info: InstanceInfo) -> ExitStack:
    """Enter every plugin's ``around_app``; see :func:`enter_process`."""
    return _enter_hooks(plugins, "around_app", lambda plugin: plugin.around_app(info))


def has_app_hook(plugins: Iterable[Plugin]) -> bool:
    """Whether one of the plugins has an ``around_app`` of its own."""
    return any(getattr(plugin.around_app, "__func__", None) is not Plugin.around_app for plugin in plugins)


def enter_process(plugins: Iterable[Plugin], info: InstanceInfo, own: InstanceInfo | None = None) -> ExitStack:
    """Enter every plugin's ``around_process``, in order.

    Args:
        info: The rank's place in its pool.
        own: Its place in a world of one rank, in a process for tasks; plugins that join ranks get it.

    Returns:
        The stack that leaves them, in reverse, when it is closed.

    Raises:
        PluginError: names the plugin that raised; those entered before it have been left.
    """
    return _enter_hooks(
        plugins, "around_process", lambda plugin: plugin.around_process(own if own and plugin.joins else info)
    )


def enter_late(plugins: Sequence[Plugin]) -> None:
    """Enter the ``around_process`` of plugins that a function brings along, once per worker; of plugins that join
    ranks, once for broadcasts and once for tasks, which have a world of one rank.

    They are left by :func:`leave_late`.

    Raises:
        UsageError: one needs peers, and this rank stands alone, or runs a task.
        PluginError: names the plugin that raised.
    """
    from skyward_core.runtime.rendezvous import is_gang_call

    world, info = instance_info(), place_in_pool()
    if world.stands_alone and world.world_size > 1:
        check_standalone(plugins)
    with _late_lock:
        for plugin in plugins:
            key = (plugin.name, plugin.joins and is_gang_call())
            if key not in _late_names:
                if plugin.needs_peers and not plugin.joins and info.world_size > 1 and not is_gang_call():
                    raise UsageError(
                        f"plugin {plugin.name} joins all {info.world_size} ranks, for {plugin.needs_peers}, and this "
                        "call runs on one of them: send it to all, function() @ pool"
                    )
                place = world if plugin.joins else info
                context = _enter_hook(
                    plugin,
                    "around_process",
                    lambda p, place=place: p.around_process(place),  # type: ignore[misc]
                )
                _late.enter_context(context)
                _late_names.add(key)


def leave_late() -> None:
    """Leave what :func:`enter_late` entered; the worker calls it at its end."""
    with _late_lock:
        _late_names.clear()
        _late.close()


_late = ExitStack()
_late_names: set[tuple[str, bool]] = set()
_late_lock = threading.Lock()


def enter_client(plugins: Iterable[Plugin], pool: Any) -> ExitStack:
    """Enter every plugin's ``around_client``; see :func:`enter_process`.

    What ends the block is the caller's own, so plugins hear of it, and none is named for it.
    """
    with ExitStack() as stack:
        for plugin in plugins:
            with _wrap_errors(plugin, "around_client"):
                stack.enter_context(plugin.around_client(pool))
        return stack.pop_all()


def _enter_hooks(
    plugins: Iterable[Plugin], hook: str, make: Callable[[Plugin], AbstractContextManager[object]]
) -> ExitStack:
    with ExitStack() as stack:
        for plugin in plugins:
            stack.enter_context(_enter_hook(plugin, hook, make))
        return stack.pop_all()


@contextmanager
def _enter_hook(plugin: Plugin, hook: str, make: Callable[[Plugin], AbstractContextManager[object]]) -> Iterator[None]:
    stack = ExitStack()
    with _wrap_errors(plugin, hook):
        stack.enter_context(make(plugin))
    try:
        yield
    finally:
        with _wrap_errors(plugin, hook):
            stack.close()


@contextmanager
def _wrap_errors(plugin: Plugin, hook: str) -> Iterator[None]:
    try:
        yield
    except PluginError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise PluginError(f"plugin {plugin.name} failed in {hook}: {text}", plugin.name, hook) from error


_PIN = re.compile(r"\d[\w.!+*-]*")
_CONSTRAINT = re.compile(r"\s*(==|>=|<=|~=|!=|<|>|===)")


def requirement(package: str, version: str | None) -> str:
    """A requirement as pip takes it.

    Args:
        version: "latest" or None for any, a bare version to pin, or constraints such as ">=2.3,<3".

    Raises:
        UsageError: the version is none of these.
    """
    if version is None or version == "latest":
        return package
    if _PIN.fullmatch(version):
        return f"{package}=={version}"
    if _CONSTRAINT.match(version):
        return f"{package}{version.strip()}"
    raise UsageError(f'{version!r} is no version of {package}: use "latest", "2.3.0" or ">=2.3"')


def has_cuda(pool_spec: PoolSpec) -> bool:
    """Whether the pool's accelerator runs CUDA."""
    from skyward_core.model.accelerators import resolve

    accelerator = resolve(pool_spec.accelerator)
    return accelerator is not None and accelerator.has_cuda


def with_pip(image: Image, requirements: Iterable[str], index: PipIndex | None = None) -> Image:
    """The image with requirements (and an index) added behind what it has; nothing is added twice.

    A package that the image names already keeps the person's own requirement.
    """
    have = {_package_name(text) for text in image.pip}
    new = tuple(text for text in requirements if _package_name(text) not in have)
    indexes = image.pip_indexes
    if index is not None and new and index not in indexes:
        indexes = (*indexes, index)
    return replace(image, pip=(*image.pip, *new), pip_indexes=indexes)


def with_env(image: Image, **values: str) -> Image:
    """The image with environment variables added; those that it sets already stay."""
    return replace(image, env=values | image.env)


def _package_name(text: str) -> str:
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", text)
    return re.sub(r"[-_.]+", "-", match.group(1)).lower() if match else text
