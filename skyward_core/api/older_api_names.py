"""Names of older API generations."""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar, get_type_hints

from skyward_core.model.errors import UsageError
from skyward_core.model.function import Function, function
from skyward_core.model.older_api_arguments import check_function_options
from skyward_core.model.specs import Image
from skyward_core.plugins.plugin import Plugin, enter_late
from skyward_core.plugins.plugin_builder import BRINGS, Automatic
from skyward_core.tasks.argument_parsing import convert_argument
from skyward_core.tasks.source_annotations import default_type

if TYPE_CHECKING:
    from skyward_core.api.compute import Compute
    from skyward_core.model.accelerators import Factory
    from skyward_core.model.specs import Worker
    from skyward_core.model.type_aliases import AcceleratorLike


F = TypeVar("F", bound=Callable[..., Any])

_warned: set[str] = set()


def _warn_renamed(name: str, new: str) -> None:
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
    _warn_renamed("compute", "@sky.function")
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
    from skyward_core.api.compute import Compute
    from skyward_core.model.accelerators import resolve
    from skyward_core.model.specs import Options, Worker
    from skyward_core.plugins import mig

    _warn_renamed("ComputePool", "sky.Compute")
    behaves = {name: options.pop(name) for name in options.keys() & Options.older_words()}
    if behaves:
        made, asked, usual = options.get("options") or Options(), Options(**behaves), Options()
        said = {each.name: getattr(asked, each.name) for each in fields(asked)}
        options["options"] = replace(
            made, **{name: value for name, value in said.items() if value != getattr(usual, name)}
        )
    image = image or Image()
    if pip or env:
        _warn_renamed("ComputePool(pip=..., env=...)", "sky.Compute(image=sky.Image(pip=[...], env={...}))")
        image = replace(image, pip=(*image.pip, *pip), env=image.env | (env or {}))
    resolved = resolve(accelerator)
    plugins = tuple(plugins)
    names = {getattr(each, "name", "") for each in plugins}
    if not names & {"torch", "accelerate"} and getattr(options.get("options"), "cluster", True):
        plugins = (*plugins, Automatic())
    if resolved is not None and resolved.mig is not None:
        plugins = (*plugins, mig(profile=resolved.mig))
        worker = worker or Worker(ranks_per_node=resolved.slices)
    return Compute(image=image, accelerator=resolved, plugins=plugins, worker=worker, **options)


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
        from skyward_core.plugins import torch

        _warn_renamed("integrations.torch", "plugins=[sky.plugins.torch()] on the pool")
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
        from skyward_core.plugins import jax, keras

        _warn_renamed("integrations.keras", "plugins=[sky.plugins.jax(), sky.plugins.keras(backend=...)] on the pool")
        made = keras(backend=backend, seed=seed)  # type: ignore[arg-type]
        return _decorator((jax(), made) if made.backend == "jax" else (made,), fn)

    def jax(self, fn: Any = None, /) -> Any:
        """The older form of ``plugins=[sky.plugins.jax()]``.

        Args:
            fn: the function.
        """
        from skyward_core.plugins import jax

        _warn_renamed("integrations.jax", "plugins=[sky.plugins.jax()] on the pool")
        return _decorator((jax(),), fn)

    def tensorflow(self, fn: Any = None, /) -> Any:
        """The older form of ``plugins=[sky.plugins.tensorflow()]``.

        Args:
            fn: the function.
        """
        from skyward_core.plugins import tensorflow

        _warn_renamed("integrations.tensorflow", "plugins=[sky.plugins.tensorflow()] on the pool")
        return _decorator((tensorflow(),), fn)

    def transformers(self, fn: Any = None, /, *, backend: str | None = None) -> Any:
        """The older form of ``plugins=[sky.plugins.torch(backend=...), sky.plugins.huggingface()]``.

        Args:
            fn: the function.
            backend: of the process group, as the plugin torch takes it.
        """
        from skyward_core.plugins import accelerate, torch

        _warn_renamed("integrations.transformers", "plugins=[sky.plugins.torch(), sky.plugins.huggingface()]")
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


class _MakerAccelerators:
    """The accelerators of one maker, as attributes: ``sky.NVIDIA.A100``."""

    def __init__(self, maker: str, path: str) -> None:
        self._maker = maker
        self._path = path

    def __getattr__(self, name: str) -> Factory:
        from skyward_core.model import accelerators

        made = accelerators.factories(self._maker).get(name)
        if made is None:
            found = getattr(accelerators, name)  # raises, and suggests, where there is none at all
            raise AttributeError(
                f"{name} is not made by {self._maker}; write sky.accelerators.{found.name.replace('-', '_')}"
            )
        _warn_renamed(f"{self._path}.{name}", f"sky.accelerators.{name}()")
        return made

    def __dir__(self) -> list[str]:
        from skyward_core.model import accelerators

        return list(accelerators.factories(self._maker))


NVIDIA = _MakerAccelerators("NVIDIA", "NVIDIA")
"""NVIDIA's accelerators, by their older names: ``sky.NVIDIA.A100``."""

AMD = _MakerAccelerators("AMD", "AMD")
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
        from skyward_core.model.accelerators import Accelerator

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

    NVIDIA = _MakerAccelerators("NVIDIA", "Accelerator.NVIDIA")
    AMD = _MakerAccelerators("AMD", "Accelerator.AMD")
    Google = _MakerAccelerators("Google", "Accelerator.Google")
    AWS = _MakerAccelerators("AWS", "Accelerator.AWS")
    Intel = _MakerAccelerators("Intel", "Accelerator.Intel")


Accelerator = AcceleratorsByMaker


P = ParamSpec("P")
T = TypeVar("T")


class _Command(NamedTuple):
    fn: Callable[..., Any]
    machines: Mapping[str, Any]


_commands: dict[str, _Command] = {}
_called_commands: list[str] = []  # those that the script has called by itself


class app:
    """The machines that a script's functions are for. Each that it decorates stays what it is, and is a command, too:

        @sky.app(provider=sky.AWS(), accelerator="A100", image=sky.Image(pip=["torch"]))
        def train(epochs: int = 10) -> dict: ...

    ``python -m skyward_core train.py --epochs 5`` brings the machines up, runs it there, prints what it returns as
    JSON, and takes them down. Of several functions the first word says which; ``--node all`` runs it on every rank.

    Args:
        retry: as ``sky.function`` takes it.
        **machines: as ``sky.Compute`` takes them.
    """

    def __init__(self, *, retry: Callable[[Any, int], bool] | None = None, **machines: Any) -> None:
        check_function_options({"retry": retry})
        self._machines = machines

    def __call__(self, fn: Callable[P, T]) -> Callable[P, T]:
        _commands[fn.__name__] = _Command(fn, self._machines)

        @wraps(fn)
        def itself(*args: P.args, **kwargs: P.kwargs) -> T:
            _called_commands.append(fn.__name__)
            return fn(*args, **kwargs)

        return itself


def should_run_command() -> bool:
    """Whether the script that has run here has commands, and has called none of them by itself."""
    return bool(_commands) and not _called_commands


def run_command(words: Sequence[str], *, dry_run: bool = False) -> None:
    """Run a command on its machines, and print what it gives.

    Args:
        words: of the command line: the command's name, if there are several, and its arguments.
        dry_run: only print what would be rented for it.

    Raises:
        UsageError: there is no such command, or it does not take these.
        RunError: it failed.
    """
    from skyward_core.api.compute import Compute

    name, rest = _select_command(list(words))
    fn, machines = _commands[name]
    if "--help" in rest:
        print(f"{name}{inspect.signature(fn)}\n{inspect.getdoc(fn) or ''}".rstrip())  # noqa: T201
        return
    given, everywhere = _parse_command_arguments(name, fn, rest)
    call = function(fn)(**given)
    pool = Compute(**machines)
    if dry_run:
        print(pool.plan())  # noqa: T201
        return
    with pool as compute:
        value = call @ compute if everywhere else call >> compute
    print(json.dumps(value, default=str))  # noqa: T201


def _select_command(words: list[str]) -> tuple[str, list[str]]:
    if words and (name := words[0].replace("-", "_")) in _commands:
        return name, words[1:]
    if len(_commands) == 1:
        return next(iter(_commands)), words
    raise UsageError(f"the script has several commands: say which, {' or '.join(_commands)}")


def _parse_command_arguments(name: str, fn: Callable[..., Any], words: list[str]) -> tuple[dict[str, Any], bool]:
    """Arguments by name, and whether every rank is to have the call."""
    parameters = inspect.signature(fn).parameters
    kinds = get_type_hints(fn)
    given: dict[str, Any] = {}
    where = "any"
    while words:
        word, is_said, text = words.pop(0).partition("=")
        if word in ("-f", "--foreground"):
            continue
        flag = word.removeprefix("--").replace("-", "_")
        if word == "--node":
            where = text if is_said else words.pop(0) if words else ""
            continue
        is_no = flag.startswith("no_") and flag not in parameters
        parameter = parameters.get(flag.removeprefix("no_") if is_no else flag)
        if not word.startswith("--") or parameter is None:
            offered = ", ".join(f"--{each.replace('_', '-')}" for each in parameters)
            raise UsageError(f"{name} takes no {word!r:.60}: it has {offered or 'no arguments'}")
        kind = kinds.get(parameter.name, default_type(parameter.default))
        if kind is bool and not is_said and not (words and not words[0].startswith("--")):
            given[parameter.name] = not is_no
            continue
        if not is_said and not words:
            raise UsageError(f"{word} of {name} wants a value")
        try:
            given[parameter.name] = convert_argument(parameter.name, text if is_said else words.pop(0), kind, name)
        except ValueError as error:
            raise UsageError(str(error)) from None
    if where not in ("any", "all"):
        raise UsageError(f"--node {where!r:.60} is not to be had: any of them runs it, or all do")
    missing = [each.name for each in parameters.values() if each.default is each.empty and each.name not in given]
    if missing:
        raise UsageError(f"{name} wants --{', --'.join(each.replace('_', '-') for each in missing)}, too")
    return given, where == "all"


DEFAULT_IMAGE: Image = Image()


class InertValue:
    """A value that keeps what it is given.

    Args:
        *args: by position.
        **given: by name.
    """

    def __init__(self, *args: Any, **given: Any) -> None:
        self.args, self.given = args, given

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        shown = [f"{value!r:.40}" for value in self.args]
        return f"{type(self).__name__}({', '.join(shown + [f'{name}=…' for name in self.given])})"


class HealthChecker(InertValue):
    __doc__ = InertValue.__doc__


class LogConfig(InertValue):
    __doc__ = InertValue.__doc__


class MetricSpec(InertValue):
    __doc__ = InertValue.__doc__


class DockerImage(str):
    """A container's image by its name, which no node here runs in."""

    __slots__ = ()

    @classmethod
    def of(cls, *args: Any, **given: Any) -> DockerImage:
        """By a tag, or by what is wanted of it."""
        return cls("-".join(map(str, (*args, *given.values()))))

    cuda = ubuntu = pytorch = runpod_base = runpod_pytorch = of


class _StubModule:
    """A module of older generations, whose functions make such values."""

    def __init__(self, makes: Any) -> None:
        self._makes = makes

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._makes


metrics: _StubModule = _StubModule(MetricSpec)
containers = DockerImage
