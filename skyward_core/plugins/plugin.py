"""Plugin protocol: the base class ``Plugin`` with its hooks, and functions that run the hooks.

Workers on nodes import this module, so it depends only on the standard library.
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
from skyward_core.model.misuse_guards import StrictKeywords
from skyward_core.runtime.instance_info_and_attempt import InstanceInfo, instance_info, place_in_pool

if TYPE_CHECKING:
    from skyward_core.model.specs import Image, PipIndex, PoolSpec


class PluginError(SkywardError):
    """A plugin's hook raised an exception, which is the cause.

    Attributes:
        plugin: Name of the plugin.
        hook: Name of the hook.
    """

    def __init__(self, message: str, plugin: str = "", hook: str = "") -> None:
        super().__init__(message)
        self.plugin = plugin
        self.hook = hook


class Plugin(StrictKeywords):
    """Base class of plugins. Hooks do nothing unless overridden.

    A plugin is a small value, preferably a frozen dataclass. It is created on the client and pickled to the nodes. It
    therefore contains only parameters, and imports its framework inside the hooks.

        @dataclass(frozen=True)
        class Greeter(Plugin):
            name: ClassVar[str] = "greeter"

            @contextmanager
            def around_process(self, info):
                print(f"rank {info.rank} starts")
                yield

    Attributes:
        name: Name of the plugin, unique in a pool.
        help: Purpose in one line, for lists of plugins.
        place: Position in lists of built-in plugins, from 1.
        requires: Names of plugins that must come before this one in the pool.
        conflicts: Names of plugins that must not be in the same pool.
        gang: Whether ``around_process`` needs all ranks of the gang together. If true, only the main worker of each
            rank enters the plugin. If false, a rank's additional workers for tasks (``Worker(concurrency=...)``) enter
            it, too.
        needs_peers: Reason why ranks need connections to each other, as a noun phrase ("a process group of all ranks").
            A pool of standalone workers (``Options(cluster=False)``) with more than one rank rejects the plugin with
            this reason. Empty for a plugin that works on each rank separately.
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
        """Whether ``around_process`` joins the gang's ranks into one world, such as a process group.

        If true, tasks run in another process of their rank, which enters the plugin with a world of one rank. By
        default true for plugins with ``gang`` and ``needs_peers``.
        """
        return self.gang and bool(self.needs_peers)

    @staticmethod
    def create(name: str) -> Any:
        """Return a plugin built from functions, as in older API versions: ``create("mine").with_decorator(f)``.

        Args:
            name: Name of the plugin, unique in a pool.
        """
        return import_module(f"{__package__}.plugin_builder").BuiltPlugin(name)

    def secrets(self) -> Sequence[str]:
        """Return values to redact in logs, summaries, errors and events."""
        return ()

    def transform(self, image: Image, pool_spec: PoolSpec) -> Image:
        """Return the image with the plugin's requirements added. Runs on the client, before anything is created.

        Args:
            image: The image, including the changes of earlier plugins.
            pool_spec: The pool's specification.
        """
        return image

    def bootstrap(self, pool_spec: PoolSpec) -> Sequence[str]:
        """Return shell commands that prepare a node. They run after the image's own commands, and are stored, so they
        must not contain secrets.

        Args:
            pool_spec: The pool's specification.
        """
        return ()

    def decorate(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that ranks call instead of the user's function. The first plugin of a pool is the
        outermost.

        Args:
            fn: The function, already decorated by the plugins after this one.
        """
        return fn

    def around_app(self, info: InstanceInfo) -> AbstractContextManager[object]:
        """Return a context that runs once per node.

        The context is entered before the node's first worker enters ``around_process``, and left after the node's
        workers have ended. It runs in its own process, shared by all ranks of the node and all runs. Use it for servers
        and caches. Variables and imports in that process have no effect on ranks.

        Args:
            info: Place of the node's first rank.
        """
        return nullcontext()

    def around_process(self, info: InstanceInfo) -> AbstractContextManager[object]:
        """Return a context that runs once per worker: entered before its first task, left at its end.

        Args:
            info: Place of the rank.
        """
        return nullcontext()

    def around_client(self, pool: Any) -> AbstractContextManager[object]:
        """Return a context that runs on the client while the pool is up.

        Args:
            pool: The ``Compute``.
        """
        return nullcontext()


def check_plugins(plugins: Iterable[object]) -> tuple[Plugin, ...]:
    """Return the plugins as a tuple, after checking that they can be combined.

    Args:
        plugins: Plugins in order of entry.

    Raises:
        UsageError: If a value is not a plugin, or if a plugin has no name, is repeated, lacks a required plugin or
            conflicts with another plugin.
    """
    seen: dict[str, Plugin] = {}
    for plugin in plugins:
        if not isinstance(plugin, Plugin):
            hint = f". Call it: {plugin.__name__}()" if isinstance(plugin, type) else ""
            if isinstance(plugin, str) and plugin.isidentifier():
                hint = f". Use sky.plugins.{plugin}()."
            raise UsageError(f"{plugin!r} is not a plugin{hint}")
        if not plugin.name:
            raise UsageError(f"plugin class {type(plugin).__name__} has no name. Set its attribute `name`.")
        if plugin.name in seen:
            raise UsageError(f"plugin {plugin.name} is given twice. Remove one.")
        for other in plugin.requires:
            if other not in seen:
                raise UsageError(f"plugin {plugin.name} requires plugin {other} before it: plugins=[{other}, ...]")
        seen[plugin.name] = plugin
    for plugin in seen.values():
        for other in plugin.conflicts:
            if other in seen:
                raise UsageError(f"plugins {plugin.name} and {other} cannot be combined. Remove one.")
    return tuple(seen.values())


def check_standalone(plugins: Iterable[Plugin]) -> None:
    """Check that plugins work with standalone ranks.

    Raises:
        UsageError: If a plugin needs peers.
    """
    for plugin in plugins:
        if plugin.needs_peers:
            raise UsageError(
                f"plugin {plugin.name} requires connections between ranks, for {plugin.needs_peers}, but "
                "Options(cluster=False) makes ranks standalone. Remove cluster=False or the plugin, or use one rank "
                "(nodes=1, ranks_per_node=1)."
            )


def transform_image(plugins: Iterable[Plugin], image: Image, pool_spec: PoolSpec) -> Image:
    """Return the image after the changes of all plugins, in order.

    Raises:
        PluginError: If a plugin's hook raises.
    """
    for plugin in plugins:
        with _wrap_errors(plugin, "transform"):
            image = plugin.transform(image, pool_spec)
    return image


def bootstrap_steps(plugins: Iterable[Plugin], pool_spec: PoolSpec) -> tuple[str, ...]:
    """Return the shell commands of all plugins, in order.

    Raises:
        PluginError: If a plugin's hook raises.
    """
    steps: list[str] = []
    for plugin in plugins:
        with _wrap_errors(plugin, "bootstrap"):
            steps.extend(plugin.bootstrap(pool_spec))
    return tuple(steps)


def decorate_function(plugins: Sequence[Plugin], fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function decorated by all plugins. The first plugin is the outermost.

    Raises:
        PluginError: If a plugin's hook raises.
    """
    for plugin in reversed(plugins):
        with _wrap_errors(plugin, "decorate"):
            fn = plugin.decorate(fn)
    return fn


def enter_app(plugins: Iterable[Plugin], info: InstanceInfo) -> ExitStack:
    """Enter every plugin's ``around_app``; see :func:`enter_process`."""
    return _enter_hooks(plugins, "around_app", lambda plugin: plugin.around_app(info))


def has_app_hook(plugins: Iterable[Plugin]) -> bool:
    """Check whether any plugin overrides ``around_app``."""
    return any(getattr(plugin.around_app, "__func__", None) is not Plugin.around_app for plugin in plugins)


def enter_process(plugins: Iterable[Plugin], info: InstanceInfo, own: InstanceInfo | None = None) -> ExitStack:
    """Enter every plugin's ``around_process``, in order.

    Args:
        info: The rank's place in its pool.
        own: In a process for tasks: the rank's place in a world of one rank, for plugins that join ranks. Otherwise
            None.

    Returns:
        A stack that leaves the contexts in reverse order when closed.

    Raises:
        PluginError: If a plugin's hook raises. Contexts that were already entered are left.
    """
    return _enter_hooks(
        plugins, "around_process", lambda plugin: plugin.around_process(own if own and plugin.joins else info)
    )


def enter_late(plugins: Sequence[Plugin]) -> None:
    """Enter ``around_process`` of the plugins that a function itself requires, once per worker.

    Plugins that join ranks are entered once for broadcasts and once for tasks, which have a world of one rank.
    :func:`leave_late` leaves all contexts.

    Raises:
        UsageError: If a plugin needs peers, but the rank is standalone or runs a task.
        PluginError: If a plugin's hook raises.
    """
    from skyward_core.runtime.framework_rendezvous_and_thread_limits import is_gang_call

    world, info = instance_info(), place_in_pool()
    if world.stands_alone and world.world_size > 1:
        check_standalone(plugins)
    with _late_lock:
        for plugin in plugins:
            key = (plugin.name, plugin.joins and is_gang_call())
            if key not in _late_names:
                if plugin.needs_peers and not plugin.joins and info.world_size > 1 and not is_gang_call():
                    raise UsageError(
                        f"plugin {plugin.name} joins all {info.world_size} ranks, for {plugin.needs_peers}, but this "
                        "call runs on one rank. Send it to all ranks: function() @ pool"
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
    """Leave the contexts of :func:`enter_late`. The worker calls this at its end."""
    with _late_lock:
        _late_names.clear()
        _late.close()


_late = ExitStack()
_late_names: set[tuple[str, bool]] = set()
_late_lock = threading.Lock()


def enter_client(plugins: Iterable[Plugin], pool: Any) -> ExitStack:
    """Enter every plugin's ``around_client``; see :func:`enter_process`.

    If the ``with`` block raises an exception, the contexts of the plugins receive it, and the caller gets it unchanged.
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
    """Return a requirement for pip.

    Args:
        version: "latest" or None for any, an exact version, or constraints such as ">=2.3,<3".

    Raises:
        UsageError: If the version is invalid.
    """
    if version is None or version == "latest":
        return package
    if _PIN.fullmatch(version):
        return f"{package}=={version}"
    if _CONSTRAINT.match(version):
        return f"{package}{version.strip()}"
    raise UsageError(f'{version!r} is not a version of {package}. Use "latest", "2.3.0" or ">=2.3".')


def has_cuda(pool_spec: PoolSpec) -> bool:
    """Check whether the pool's accelerator supports CUDA."""
    from skyward_core.model.accelerators import resolve

    accelerator = resolve(pool_spec.accelerator)
    return accelerator is not None and accelerator.has_cuda


def with_pip(image: Image, requirements: Iterable[str], index: PipIndex | None = None) -> Image:
    """Return the image with requirements, and a package index, added at the end. Duplicates are omitted.

    The user's own requirement of a package takes precedence.
    """
    have = {_package_name(text) for text in image.pip}
    new = tuple(text for text in requirements if _package_name(text) not in have)
    indexes = image.pip_indexes
    if index is not None and new and index not in indexes:
        indexes = (*indexes, index)
    return replace(image, pip=(*image.pip, *new), pip_indexes=indexes)


def with_env(image: Image, **values: str) -> Image:
    """Return the image with environment variables added. The image's own variables take precedence."""
    return replace(image, env=values | image.env)


def _package_name(text: str) -> str:
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", text)
    return re.sub(r"[-_.]+", "-", match.group(1)).lower() if match else text
