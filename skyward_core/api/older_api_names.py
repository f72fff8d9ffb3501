"""Public names of older API generations: ``compute``, ``ComputePool``, ``app``, ``integrations``, accelerators.

Scripts written for them keep running. Each name forwards to its replacement and warns once.
``python -m skyward_core SCRIPT`` runs a command of ``app`` if the script has called none of its commands itself.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, get_type_hints

from skyward_core import plugins as library_plugins
from skyward_core.model.deprecated_and_unknown_arguments import check_function_options
from skyward_core.model.errors import UsageError, convert_errors
from skyward_core.model.function import Function, function
from skyward_core.model.specs import Image, Options, Worker
from skyward_core.plugins.built_in.torch import BRINGS, Automatic, call_before
from skyward_core.plugins.plugin import Plugin, enter_late
from skyward_core.tasks.argument_parsing_and_sweeps import convert_argument
from skyward_core.tasks.parameter_types_from_source import default_type

if TYPE_CHECKING:
    from skyward_core.api.compute import Compute
    from skyward_core.model.accelerators import Factory
    from skyward_core.model.specs import AcceleratorLike


F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
T = TypeVar("T")

_warned: set[str] = set()


def _warn_renamed(name: str, new: str) -> None:
    if name not in _warned:
        _warned.add(name)
        # Python shows a FutureWarning by default in any module, but a DeprecationWarning only in __main__.
        warnings.warn(f"sky.{name} is deprecated: use {new}", FutureWarning, stacklevel=3)


def compute(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Decorate a function: the older name of ``sky.function``.

    Args:
        fn: The function.
        **options: Same as for ``sky.function``.
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
    """Create a pool: the older name of ``sky.Compute``.

    As in the oldest generation, the ``torch.distributed`` process group is initialized before a broadcast function
    whose code mentions ``torch.distributed``.

    Args:
        pip: Requirements to add to the image.
        env: Environment variables of the ranks, added to the image.
        image: Environment of the nodes.
        accelerator: Accelerator of each node. MIG slices add the plugin ``mig``, and one rank for each slice.
        plugins: Frameworks, in the order in which they are set up.
        worker: How each node runs calls.
        **options: Arguments of ``sky.Compute``, and fields of ``sky.Options`` by older names.

    Raises:
        UsageError: If arguments are invalid or contradict each other.
    """
    from skyward_core.api.compute import Compute
    from skyward_core.model.accelerators import resolve

    _warn_renamed("ComputePool", "sky.Compute")
    older_options = {name: options.pop(name) for name in options.keys() & Options.older_words()}
    if older_options:
        made, asked, usual = options.get("options") or Options(), Options(**older_options), Options()
        values = {each.name: getattr(asked, each.name) for each in fields(asked)}
        options["options"] = replace(
            made, **{name: value for name, value in values.items() if value != getattr(usual, name)}
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
        plugins = (*plugins, library_plugins.mig(profile=resolved.mig))
        worker = worker or Worker(ranks_per_node=resolved.slices)
    return Compute(image=image, accelerator=resolved, plugins=plugins, worker=worker, **options)


class _Integrations:
    """Decorators that set up a framework inside the rank, at the first call of the function in that rank.

    Each decorator works with and without arguments, above and below ``@function``. A plugin of the pool does the same
    for every function, before the first call.
    """

    def torch(self, fn: Any = None, /, *, backend: str | None = None) -> Any:
        """Set up PyTorch: the older form of ``plugins=[sky.plugins.torch(backend=...)]``.

        Args:
            fn: The function.
            backend: Same as for the plugin.
        """
        _warn_renamed("integrations.torch", "plugins=[sky.plugins.torch()] on the pool")
        return _decorator((library_plugins.torch(backend=backend),), fn)

    def keras(self, fn: Any = None, /, *, backend: str = "jax", seed: int | None = None) -> Any:
        """Set up Keras: the older form of ``plugins=[sky.plugins.jax(), sky.plugins.keras(backend="jax")]``.

        With backend "jax", ``model.fit`` trains one model over the devices of all ranks, and each rank feeds its own
        shard. Other backends are set up without the plugin ``jax``.

        Args:
            fn: The function.
            backend: Same as for the plugin.
            seed: Same as for the plugin.
        """
        _warn_renamed("integrations.keras", "plugins=[sky.plugins.jax(), sky.plugins.keras(backend=...)] on the pool")
        made = library_plugins.keras(backend=backend, seed=seed)  # type: ignore[arg-type]
        return _decorator((library_plugins.jax(), made) if made.backend == "jax" else (made,), fn)

    def jax(self, fn: Any = None, /) -> Any:
        """Set up JAX: the older form of ``plugins=[sky.plugins.jax()]``.

        Args:
            fn: The function.
        """
        _warn_renamed("integrations.jax", "plugins=[sky.plugins.jax()] on the pool")
        return _decorator((library_plugins.jax(),), fn)

    def tensorflow(self, fn: Any = None, /) -> Any:
        """Set up TensorFlow: the older form of ``plugins=[sky.plugins.tensorflow()]``.

        Args:
            fn: The function.
        """
        _warn_renamed("integrations.tensorflow", "plugins=[sky.plugins.tensorflow()] on the pool")
        return _decorator((library_plugins.tensorflow(),), fn)

    def transformers(self, fn: Any = None, /, *, backend: str | None = None) -> Any:
        """Set up Transformers: the older form of ``plugins=[sky.plugins.torch(backend=...),
        sky.plugins.huggingface()]``.

        Args:
            fn: The function.
            backend: Backend of the process group, same as for the plugin ``torch``.
        """
        _warn_renamed("integrations.transformers", "plugins=[sky.plugins.torch(), sky.plugins.huggingface()]")
        # Omit the plugin huggingface: it may contain a token, which would be pickled with the decorated function.
        return _decorator((library_plugins.torch(backend=backend), library_plugins.accelerate()), fn)


integrations = _Integrations()
"""Decorators that set up a framework inside the rank: ``torch``, ``keras``, ``jax``, ``tensorflow`` and others."""


def _decorator(plugins: tuple[Plugin, ...], fn: Any) -> Any:
    return partial(_inside, plugins) if fn is None else _inside(plugins, fn)


def _inside(plugins: tuple[Plugin, ...], fn: Any) -> Any:
    if isinstance(fn, Function):
        return fn.__skyward_wrap__(partial(_inside, plugins))
    made = call_before(partial(enter_late, plugins), fn)
    setattr(made, BRINGS, True)
    return made


class _MakerAccelerators:
    """Accelerators of one maker, as attributes: ``sky.NVIDIA.A100``."""

    def __init__(self, maker: str, path: str) -> None:
        self._maker = maker
        self._path = path

    def __getattr__(self, name: str) -> Factory:
        from skyward_core.model import accelerators

        made = accelerators.factories(self._maker).get(name)
        if made is None:
            # If no maker has this accelerator, this line raises an error that suggests similar names.
            found = getattr(accelerators, name)
            raise AttributeError(
                f"{name} is not an accelerator of {self._maker}. Use sky.accelerators.{found.name.replace('-', '_')}."
            )
        _warn_renamed(f"{self._path}.{name}", f"sky.accelerators.{name}()")
        return made

    def __dir__(self) -> list[str]:
        from skyward_core.model import accelerators

        return list(accelerators.factories(self._maker))


NVIDIA = _MakerAccelerators("NVIDIA", "NVIDIA")
"""Accelerators of NVIDIA by older names: ``sky.NVIDIA.A100``."""

AMD = _MakerAccelerators("AMD", "AMD")
"""Accelerators of AMD by older names: ``sky.AMD.MI300X``."""


class AcceleratorsByMaker:
    """Accelerators by maker: ``sky.Accelerator.NVIDIA.A100(mig="3g.40gb")``, or by name: ``sky.Accelerator("A100",
    8)``.

    Args:
        name: Name of the accelerator, in any known spelling.
        count: Number per node. Less than 1 for a fraction of one accelerator.
        memory: Memory of each, "80GB" or 80. None for any size.

    Attributes:
        NVIDIA: Accelerators of NVIDIA.
        AMD: Accelerators of AMD.
        Google: Accelerators of Google.
        AWS: Accelerators of AWS.
        Intel: Accelerators of Intel.
    """

    def __new__(cls, name: str, count: float = 1, *, memory: str | float | None = None) -> Any:
        from skyward_core.model.accelerators import Accelerator

        return Accelerator.from_name(name, count=count, memory=memory or None)

    @staticmethod
    def from_name(name: str, *, count: float = 1, memory: str | float | None = None) -> Any:
        """Return accelerators by name, as ``sky.accelerators.parse`` does.

        Args:
            name: Name of the accelerator, in any known spelling.
            count: Number per node. Less than 1 for a fraction of one accelerator.
            memory: Memory of each, "80GB" or 80. None for any size.

        Raises:
            UsageError: If the accelerator or its memory size is unknown, or if the count is invalid.
        """
        return AcceleratorsByMaker(name, count, memory=memory)

    NVIDIA = _MakerAccelerators("NVIDIA", "Accelerator.NVIDIA")
    AMD = _MakerAccelerators("AMD", "Accelerator.AMD")
    Google = _MakerAccelerators("Google", "Accelerator.Google")
    AWS = _MakerAccelerators("AWS", "Accelerator.AWS")
    Intel = _MakerAccelerators("Intel", "Accelerator.Intel")


Accelerator = AcceleratorsByMaker


DEFAULT_IMAGE: Image = Image()


class InertValue:
    """Value without effect that stores its arguments: a placeholder for classes of older API versions.

    Args:
        *args: Positional arguments.
        **given: Keyword arguments.
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
    """Container image by name. Nodes do not run containers."""

    __slots__ = ()

    @classmethod
    def of(cls, *args: Any, **given: Any) -> DockerImage:
        """Return an image by its tag, or by its properties."""
        return cls("-".join(map(str, (*args, *given.values()))))

    cuda = ubuntu = pytorch = runpod_base = runpod_pytorch = of


class _StubModule:
    """Module of older API versions whose functions return inert values."""

    def __init__(self, makes: Any) -> None:
        self._makes = makes

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._makes


metrics: _StubModule = _StubModule(MetricSpec)
containers = DockerImage


_commands: dict[str, tuple[Callable[..., Any], Mapping[str, Any]]] = {}
_called_commands: list[str] = []  # names of commands that the script has called as functions


class app:
    """Decorator that turns functions into commands with their own machines. The functions themselves do not change.

        @sky.app(provider=sky.AWS(), accelerator="A100", image=sky.Image(pip=["torch"]))
        def train(epochs: int = 10) -> dict: ...

    ``python -m skyward_core train.py --epochs 5`` starts the machines, runs the function there, prints its value as
    JSON, and tears the machines down. If the script has several commands, the first word selects one. ``--node all``
    runs the function on every rank.

    Args:
        retry: Same as for ``sky.function``.
        **machines: Same as for ``sky.Compute``.
    """

    def __init__(self, *, retry: Callable[[Any, int], bool] | None = None, **machines: Any) -> None:
        check_function_options({"retry": retry})
        self._machines = machines

    def __call__(self, fn: Callable[P, T]) -> Callable[P, T]:
        _commands[fn.__name__] = fn, self._machines

        @wraps(fn)
        def itself(*args: P.args, **kwargs: P.kwargs) -> T:
            _called_commands.append(fn.__name__)
            return fn(*args, **kwargs)

        return itself


def should_run_command() -> bool:
    """Check whether the script has commands and has called none of them itself."""
    return bool(_commands) and not _called_commands


def run_command(words: Sequence[str], *, dry_run: bool = False) -> None:
    """Run a command on its machines and print its value as JSON.

    Args:
        words: Arguments of the command line: the command's name, required if there are several, and its arguments.
        dry_run: Only print the plan of the machines.

    Raises:
        UsageError: If the command does not exist, or does not accept the arguments.
        RunError: If the command failed.
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
    raise UsageError(f"the script has several commands. Name one of {', '.join(_commands)}.")


def _parse_command_arguments(name: str, fn: Callable[..., Any], words: list[str]) -> tuple[dict[str, Any], bool]:
    """Return the arguments by name, and whether the call runs on every rank."""
    parameters = inspect.signature(fn).parameters
    kinds = get_type_hints(fn)
    given: dict[str, Any] = {}
    where = "any"
    while words:
        word, has_value, text = words.pop(0).partition("=")
        if word in ("-f", "--foreground"):
            continue
        flag = word.removeprefix("--").replace("-", "_")
        if word == "--node":
            where = text if has_value else words.pop(0) if words else ""
            continue
        negated = flag.startswith("no_") and flag not in parameters
        parameter = parameters.get(flag.removeprefix("no_") if negated else flag)
        if not word.startswith("--") or parameter is None:
            offered = ", ".join(f"--{each.replace('_', '-')}" for each in parameters)
            raise UsageError(f"{name} has no argument {word!r:.60}. Its arguments: {offered or 'none'}")
        type_ = kinds.get(parameter.name, default_type(parameter.default))
        if type_ is bool and not has_value and not (words and not words[0].startswith("--")):
            given[parameter.name] = not negated
            continue
        if not has_value and not words:
            raise UsageError(f"{word} of {name} requires a value")
        with convert_errors("", UsageError, ValueError):
            given[parameter.name] = convert_argument(parameter.name, text if has_value else words.pop(0), type_, name)
    if where not in ("any", "all"):
        raise UsageError(f"--node {where!r:.60} is not supported. Use any or all.")
    missing = [each.name for each in parameters.values() if each.default is each.empty and each.name not in given]
    if missing:
        raise UsageError(f"{name} requires --{', --'.join(each.replace('_', '-') for each in missing)}")
    return given, where == "all"
