"""The older names of this API. Each still does what it did, and warns once, naming the new one."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar

from ...model.function import Function, function
from ...plugins.base import Plugin, enter_late
from ...plugins.support.automatic import BRINGS, Automatic

if TYPE_CHECKING:
    from ...model.accelerators import Factory
    from ...model.accepted_types import AcceleratorLike
    from ...model.spec import Image, Worker
    from .compute import Compute

F = TypeVar("F", bound=Callable[..., Any])

_warned: set[str] = set()


def _old(name: str, new: str) -> None:
    if name not in _warned:
        _warned.add(name)
        # FutureWarning is shown by default wherever the call stands; DeprecationWarning is not.
        warnings.warn(f"sky.{name} is the older name; write {new}", FutureWarning, stacklevel=3)


def compute(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """The older name of ``sky.function``.

    Args:
        fn: the function.
        **options: as ``sky.function`` takes them.
    """
    _old("compute", "@sky.function")
    return function(**options) if fn is None else function(fn)


def ComputePool(
    *,
    pip: Sequence[str] = (),
    env: dict[str, str] | None = None,
    image: Image | None = None,
    accelerator: AcceleratorLike | None = None,
    plugins: Sequence[Plugin] = (),
    worker: Worker | None = None,
    **options: Any,
) -> Compute:
    """The older name of ``sky.Compute``. A function whose code names ``torch.distributed`` finds the process group made
    when it is broadcast, as the oldest generation has it.

    Args:
        pip: requirements; they go into the image.
        env: environment variables of the ranks; they go into the image.
        image: what the nodes' environment holds.
        accelerator: what each node needs; one that is cut by MIG brings the plugin, and a rank for each slice.
        plugins: frameworks to set up, in order of entry.
        worker: how each node runs what it is given.
        **options: as ``sky.Compute`` takes them, and what ``sky.Options`` takes by older words.

    Raises:
        UsageError: what was asked for makes no sense.
    """
    from ...model.accelerators import resolve
    from ...model.spec import Image, Options, Worker
    from ...plugins import mig
    from .compute import Compute

    _old("ComputePool", "sky.Compute")
    behaves = {name: options.pop(name) for name in options.keys() & Options.older_words()}
    if behaves:
        made, asked, usual = options.get("options") or Options(), Options(**behaves), Options()
        said = {each.name: getattr(asked, each.name) for each in fields(asked)}
        options["options"] = replace(
            made, **{name: value for name, value in said.items() if value != getattr(usual, name)}
        )
    image = image or Image()
    if pip or env:
        _old("ComputePool(pip=..., env=...)", "sky.Compute(image=sky.Image(pip=[...], env={...}))")
        image = replace(image, pip=(*image.pip, *pip), env=image.env | (env or {}))
    accelerator = resolve(accelerator)
    plugins = tuple(plugins)
    names = {getattr(each, "name", "") for each in plugins}
    if not names & {"torch", "accelerate"} and getattr(options.get("options"), "cluster", True):
        plugins = (*plugins, Automatic())
    if accelerator is not None and accelerator.mig is not None:
        plugins = (*plugins, mig(profile=accelerator.mig))
        worker = worker or Worker(ranks_per_node=accelerator.slices)
    return Compute(image=image, accelerator=accelerator, plugins=plugins, worker=worker, **options)


class _Integrations:
    """Decorators that set a framework up inside the rank, at the function's first call there.

    Each works bare and with arguments, above and below ``@function``. A plugin on the pool does the same
    for every function, before the first call.
    """

    def torch(self, fn: Any = None, /, *, backend: str | None = None) -> Any:
        """The older form of ``plugins=[sky.plugins.torch(backend=...)]``.

        Args:
            fn: the function.
            backend: as the plugin takes it.
        """
        from ...plugins import torch

        _old("integrations.torch", "plugins=[sky.plugins.torch()] on the pool")
        return _decorator((torch(backend=backend),), fn)

    def keras(self, fn: Any = None, /, *, backend: str = "jax", seed: int | None = None) -> Any:
        """The older form of ``plugins=[sky.plugins.jax(), sky.plugins.keras(backend="jax")]``: ``model.fit`` trains one
        model over the devices of all ranks, of which each feeds its own shard. With another backend its own set-up is
        made.

        Args:
            fn: the function.
            backend: as the plugin takes it.
            seed: as the plugin takes it.
        """
        from ...plugins import jax, keras

        _old("integrations.keras", "plugins=[sky.plugins.jax(), sky.plugins.keras(backend=...)] on the pool")
        made = keras(backend=backend, seed=seed)  # type: ignore[arg-type]
        return _decorator((jax(), made) if made.backend == "jax" else (made,), fn)

    def jax(self, fn: Any = None, /) -> Any:
        """The older form of ``plugins=[sky.plugins.jax()]``.

        Args:
            fn: the function.
        """
        from ...plugins import jax

        _old("integrations.jax", "plugins=[sky.plugins.jax()] on the pool")
        return _decorator((jax(),), fn)

    def tensorflow(self, fn: Any = None, /) -> Any:
        """The older form of ``plugins=[sky.plugins.tensorflow()]``.

        Args:
            fn: the function.
        """
        from ...plugins import tensorflow

        _old("integrations.tensorflow", "plugins=[sky.plugins.tensorflow()] on the pool")
        return _decorator((tensorflow(),), fn)

    def transformers(self, fn: Any = None, /, *, backend: str | None = None) -> Any:
        """The older form of ``plugins=[sky.plugins.torch(backend=...), sky.plugins.huggingface()]``.

        Args:
            fn: the function.
            backend: of the process group, as the plugin torch takes it.
        """
        from ...plugins import accelerate, torch

        _old("integrations.transformers", "plugins=[sky.plugins.torch(), sky.plugins.huggingface()]")
        # Not the plugin huggingface: it may hold a token, and a decorator travels inside the function.
        return _decorator((torch(backend=backend), accelerate()), fn)


integrations = _Integrations()
"""Decorators that set a framework up inside the rank: ``torch``, ``keras``, ``jax``, ``tensorflow`` and others."""


def _decorator(plugins: tuple[Plugin, ...], fn: Any) -> Any:
    return partial(_inside, plugins) if fn is None else _inside(plugins, fn)


def _inside(plugins: tuple[Plugin, ...], fn: Any) -> Any:
    if isinstance(fn, Function):
        return fn.__skyward_wrap__(partial(_inside, plugins))
    if inspect.isgeneratorfunction(fn):

        @wraps(fn)
        def stream(*args: Any, **kwargs: Any) -> Any:
            enter_late(plugins)
            return (yield from fn(*args, **kwargs))

        setattr(stream, BRINGS, True)
        return stream

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        enter_late(plugins)
        return fn(*args, **kwargs)

    setattr(call, BRINGS, True)
    return call


class _Maker:
    """The accelerators of one maker, as attributes: ``sky.NVIDIA.A100``."""

    def __init__(self, maker: str, path: str) -> None:
        self._maker = maker
        self._path = path

    def __getattr__(self, name: str) -> Factory:
        from ...model import accelerators

        made = accelerators.factories(self._maker).get(name)
        if made is None:
            found = getattr(accelerators, name)  # raises, and suggests, where there is none at all
            raise AttributeError(
                f"{name} is not made by {self._maker}; write sky.accelerators.{found.name.replace('-', '_')}"
            )
        _old(f"{self._path}.{name}", f"sky.accelerators.{name}()")
        return made

    def __dir__(self) -> list[str]:
        from ...model import accelerators

        return list(accelerators.factories(self._maker))


NVIDIA = _Maker("NVIDIA", "NVIDIA")
"""NVIDIA's accelerators, by their older names: ``sky.NVIDIA.A100``."""

AMD = _Maker("AMD", "AMD")
"""AMD's accelerators, by their older names: ``sky.AMD.MI300X``."""


class AcceleratorsByMaker:
    """The accelerators by maker: ``sky.Accelerator.NVIDIA.A100(mig="3g.40gb")``; called, those of a name:
    ``sky.Accelerator("A100", 8)``.

    Args:
        name: in any spelling that finds it.
        count: how many per node; less than 1 for a part of one.
        memory: memory of each, "80GB" or 80; None for whichever there is.

    Attributes:
        NVIDIA: those of NVIDIA.
        AMD: those of AMD.
        Google: those of Google.
        AWS: those of AWS.
        Intel: those of Intel.
    """

    def __new__(cls, name: str, count: float = 1, *, memory: str | float | None = None) -> Any:
        from ...model.accelerators import Accelerator

        return Accelerator.from_name(name, count=count, memory=memory or None)

    @staticmethod
    def from_name(name: str, *, count: float = 1, memory: str | float | None = None) -> Any:
        """Accelerators of a kind, by its name, as ``sky.accelerators.parse`` gives them.

        Args:
            name: in any spelling that finds it.
            count: how many per node; less than 1 for a part of one.
            memory: memory of each, "80GB" or 80; None for whichever there is.

        Raises:
            UsageError: no such accelerator or memory size, or a count that is none.
        """
        return AcceleratorsByMaker(name, count, memory=memory)

    NVIDIA = _Maker("NVIDIA", "Accelerator.NVIDIA")
    AMD = _Maker("AMD", "Accelerator.AMD")
    Google = _Maker("Google", "Accelerator.Google")
    AWS = _Maker("AWS", "Accelerator.AWS")
    Intel = _Maker("Intel", "Accelerator.Intel")


Accelerator = AcceleratorsByMaker
