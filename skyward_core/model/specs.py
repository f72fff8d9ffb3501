"""Specifications of pools: ``PoolSpec``, ``Spec``, ``Image``, ``Worker``, ``Options`` and ``Nodes``, with their
validation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field, fields, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias

from skyward_core.model import spec_field_checks as checks
from skyward_core.model.deprecated_and_unknown_arguments import (
    AcceptsDeprecatedArguments,
    Rules,
    apply_rules,
    ignored,
    ignored_silently,
    rejected,
    renamed,
)
from skyward_core.model.errors import SpecError
from skyward_core.model.provider_capability_protocols import Rents, ServedByAnother
from skyward_core.util.light_dataclass import Value, checked, value
from skyward_core.util.redaction import MIN_SECRET_LENGTH, make_sanitizer, map_strings

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from skyward_core.model.accelerators import Accelerator, Factory
    from skyward_core.model.machines_checks_and_gpu_use import Check, Machine
    from skyward_core.model.offers_and_rental_plans import MachineRequirements

    class HasMachines(Protocol):
        """Minimal interface that distinguishes a provider from other values. ``providers.provider`` has all methods."""

        async def create(self, spec: Any, token: str) -> list[Machine]: ...

        async def check(self) -> list[Check]: ...

        def to_json(self) -> dict[str, Any]: ...

    class HasHooks(Protocol):
        """Minimal interface that distinguishes a plugin from other values. ``plugins.Plugin`` has all methods."""

        def secrets(self) -> Sequence[str]: ...

        def decorate(self, fn: Callable[..., Any]) -> Callable[..., Any]: ...

        def around_process(self, info: Any) -> AbstractContextManager[object]: ...

    ProviderLike: TypeAlias = HasMachines | ServedByAnother | type[HasMachines] | type[ServedByAnother] | str
    """A provider, a provider class that needs no parameters, or a provider's name."""

    AcceleratorLike: TypeAlias = Accelerator | Factory | Callable[[], Accelerator] | str
    """An accelerator, an uncalled factory for one accelerator per node, or text such as "A100:8"."""


class ValidatedValue(Value, metaclass=AcceptsDeprecatedArguments):
    """Base of immutable values that are validated when created. Change them with ``dataclasses.replace``."""

    _older: ClassVar[Rules] = {}  # rules for the deprecated arguments of the class
    # Names of the arguments that older API versions accept by position, in this order.
    _in_order: ClassVar[Sequence[str]] = ()
    # Names of arguments that are not fields, because a method of the subclass handles them.
    _more: ClassVar[Sequence[str]] = ()

    @classmethod
    def _today(cls, args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
        """Translate arguments of any API generation to the current arguments.

        Raises:
            TypeError: If arguments are unknown, or too many.
            SpecError: If an argument is rejected.
        """
        if args:
            if len(args) > len(cls._in_order):
                raise TypeError(
                    f"sky.{cls.__name__} takes keyword arguments only, got {len(args)} positional arguments"
                )
            given = dict(zip(cls._in_order, args, strict=False)) | given
        if not given.keys() <= cls.__dataclass_fields__.keys():
            from skyward_core.model.deprecated_and_unknown_arguments import check_unknown_arguments

            own = [each.name for each in fields(cls)]
            check_unknown_arguments(f"sky.{cls.__name__}", given, [*own, *cls._in_order, *cls._older, *cls._more])
        return apply_rules(f"sky.{cls.__name__}", cls._older, given) if given.keys() & cls._older.keys() else given

    def __post_init__(self) -> None:
        for each in fields(self):
            try:
                if check := each.metadata.get("check"):
                    object.__setattr__(self, each.name, check(getattr(self, each.name)))
            except ValueError as error:
                raise SpecError(str(error), each.name) from None


@value(kw_only=True, frozen=True)
class Nodes(ValidatedValue):
    """Range for the number of machines. A pool starts with as many as are available. ``str`` returns a form like "2:8".

    ``Nodes(4)`` means exactly four. A pool keeps the number of machines that it was started with, so ``Nodes(initial=2,
    max=8)``, which requests growth, is rejected.

    Args:
        min: Minimum number of machines.
        max: Maximum number of machines.

    Raises:
        SpecError: If a value is invalid.
    """

    min: int = checked(checks.integer_between(1, 1024))
    max: int = checked(checks.integer_between(1, 1024))

    if TYPE_CHECKING:

        def __init__(self, initial: int = ..., *, min: int = ..., max: int = ...) -> None: ...

    _in_order: ClassVar[Sequence[str]] = ("initial",)
    _more: ClassVar[Sequence[str]] = ("desired",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max < self.min:
            raise SpecError(f"should be at least min={self.min} (got {self.max})", "max")

    def __str__(self) -> str:
        return f"{self.min}:{self.max}"

    @classmethod
    def _today(cls, args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
        given = super()._today(args, given)
        words = [name for name in ("initial", "desired") if name in given]
        if not words:
            return given
        first = given.pop(words[0])
        bounds = {name: value for name, value in given.items() if value is not None}
        if any(value != first for value in bounds.values()):
            shown = ", ".join(f"{name}={value!r}" for name, value in {words[0]: first, **bounds}.items())
            raise SpecError(f"{_ELASTIC_ERROR} (got {shown})", "nodes")
        return {"min": first, "max": first}


_ELASTIC_ERROR = (
    "pools that grow or shrink are not supported: use nodes=4 for a fixed number, or nodes=sky.Nodes(min=2, max=8) "
    "for as many machines as are available at the start"
)


def parse_node_count(value: Any) -> int | Nodes:
    """Return a number of nodes or a range, from a number, a range or text. A range of one value becomes a number."""
    if isinstance(value, tuple | list) and len(value) == 2:
        if value[0] != value[1]:
            raise ValueError(f"{_ELASTIC_ERROR} (got {tuple(value)!r:.60})")
        value = value[0]
    if isinstance(value, str):
        least, _, most = value.partition(":")
        try:
            value = Nodes(min=_parse_count(least), max=_parse_count(most))
        except ValueError as error:
            reason = f"; {error.field} {error.reason}" if isinstance(error, SpecError) else ""
            raise ValueError(
                f'should be a whole number from 1 to 1024, or a range of them such as "2:8" (got {value!r:.60}{reason})'
            ) from None
    if isinstance(value, Nodes):
        return value if value.min < value.max else value.min
    return _check_node_count(value)


def _parse_count(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError("no number")
    return int(text)


_check_node_count: Callable[[Any], int] = checks.integer_between(1, 1024)


NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?")


def _check_pool_name(value: Any) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ValueError(
            f"{value!r:.60} is not a pool name: use 1 to 48 lower-case letters, digits and hyphens, "
            "with a letter or digit at both ends"
        )
    return value


def generate_pool_name(script: str) -> str:
    """Return a name for a pool of a script: the script's name and a random suffix."""
    import secrets  # imported late, because most pools have a name

    stem = PurePath(script).stem.lower()
    letters = "".join(c if c.isascii() and c.isalnum() else "-" for c in stem).strip("-")[:32]
    return f"{letters or 'pool'}-{secrets.token_hex(2)}"


def _check_secret(value: Any) -> str:
    # Quote no value in the error, because it is a secret.
    if not isinstance(value, str) or len(value) < MIN_SECRET_LENGTH:
        raise ValueError(
            f"must have at least {MIN_SECRET_LENGTH} characters: shorter values also match ordinary text in logs"
        )
    return value


@value(kw_only=True, frozen=True)
class PipIndex(ValidatedValue):
    """Additional package index.

    Args:
        url: URL, as for pip's ``--extra-index-url``.
        packages: Names of the packages to install from the index only; empty for all.

    Raises:
        SpecError: If a value is invalid.
    """

    url: str = checked(checks.text)
    packages: Sequence[str] = checked(checks.tuple_of(checks.text), default=())


@value(kw_only=True, frozen=True)
class Image(ValidatedValue):
    """Environment of the nodes: Python, packages, variables and files.

        sky.Image(pip=["torch==2.4"], env={"HF_HOME": "/data/hf"}, outputs=["checkpoints/**"])

    Args:
        python: Version such as "3.12". None, or "auto", for the client's version.
        pip: Requirements, as for pip.
        pip_indexes: Additional package indexes.
        lock: Path of a lock file: ``uv.lock``, ``pylock.toml``, or lines ``name==version`` as from ``pip freeze``. The
            exact versions in the file are installed first, and ``pip`` cannot change them. The path is relative to
            ``workdir``. A missing file is searched for in the parent folders of ``workdir``, up to the project's root.
        requirements: Path of a requirements file for pip. A missing file is searched for as for ``lock``.
        project: Install the dependencies of the project's ``pyproject.toml``. At most one of ``lock``, ``requirements``
            and ``project`` can be given.
        apt: Debian packages.
        env: Environment variables of the ranks.
        setup: Shell commands that run once per environment.
        workdir: Working folder of the ranks, which is sent to the nodes, relative to the current folder. None for the
            current folder, or the script's folder if the script is elsewhere.
        includes: Glob patterns of ignored files in the working folder that are sent nevertheless.
        excludes: Glob patterns of files in the working folder that are not sent.
        outputs: Patterns of files that ranks write, such as ``"out/**"`` or ``"*.pt"``. These files are downloaded to
            ``outputs/RUN/`` during and after the run. For a pool on this machine no download is needed.
        checkpoints: Patterns of files that are checkpoints, for scripts that do not use ``sky.checkpoint_dir()``. The
            newest complete ones are downloaded, copied to the nodes of the next attempt, and saved in the
            ``checkpoint_store`` of the options.

    Raises:
        SpecError: If a value is invalid.
    """

    python: str | None = checked(checks.optional(checks.python_version), default=None)
    pip: Sequence[str] = checked(checks.tuple_of(checks.text), default=())
    pip_indexes: Sequence[PipIndex] = checked(checks.tuple_of(checks.instance(PipIndex)), default=())
    lock: str | os.PathLike[str] | None = checked(checks.optional(checks.path), default=None)
    requirements: str | os.PathLike[str] | None = checked(checks.optional(checks.path), default=None)
    project: bool = checked(checks.flag, default=False)
    apt: Sequence[str] = checked(checks.tuple_of(checks.text), default=())
    # Hidden in repr, because values of variables may be secrets.
    env: dict[str, str] = checked(checks.variables, default_factory=dict, repr=False)
    setup: Sequence[str] = checked(checks.tuple_of(checks.text), default=())
    workdir: str | os.PathLike[str] | None = checked(checks.optional(checks.path), default=None)
    includes: Sequence[str] = checked(checks.tuple_of(checks.upload_pattern), default=())
    excludes: Sequence[str] = checked(checks.tuple_of(checks.upload_pattern), default=())
    outputs: Sequence[str] = checked(checks.tuple_of(checks.output_pattern), default=())
    checkpoints: Sequence[str] = checked(checks.tuple_of(checks.output_pattern), default=())

    _older: ClassVar[Rules] = {
        "base": rejected("the provider chooses the machine image, for example with sky.AWS(ami=...)"),
        "shell_vars": rejected("use env= for plain values, and setup= for shell commands", {}),
        "skyward_source": ignored_silently,
        "skyward": ignored_silently,
        "metrics": ignored("compute.metrics() returns the metrics of machines", False, True, (), []),
        "bootstrap_timeout": ignored("sky.Options(start_timeout=...) bounds the whole start", 300, 900),
        "warm": ignored("no machine images are created", False),
        "mutable": ignored("a pool keeps its image", False),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self._files
        if len(given) > 1:
            raise SpecError(f"{' and '.join(given)} cannot be combined. Keep only one of them", given[0])

    @property
    def packages_by(self) -> str:
        """Field that selects the project's package list: "lock", "requirements" or "project". "" for none."""
        return next(iter(self._files), "")

    @property
    def _files(self) -> list[str]:
        return [each for each in ("lock", "requirements", "project") if getattr(self, each) not in (None, False)]

    def describe(self) -> dict[str, Any]:
        """Return the image as JSON types, without its variables. URLs may contain credentials."""
        return {name: value for name, value in asdict(self).items() if name != "env"}


@value(kw_only=True, frozen=True)
class Worker(ValidatedValue):
    """How a node runs calls.

    Args:
        concurrency: Number of tasks (``>>``, gather) that one rank runs at the same time. Broadcasts run one at a time.
            "auto" for one task per requested GPU or MIG slice. Without GPUs, "auto" means one task per CPU thread
            (``vcpus``, or for local nodes the number of this machine's threads).
        executor: "process" runs each task in a separate interpreter, on its main thread. "thread" runs tasks as threads
            of the rank's only interpreter.
        ranks_per_node: Number of ranks on each node; "gpu" for one per GPU.

    Raises:
        SpecError: If a value is invalid.
    """

    concurrency: int | Literal["auto"] = checked(checks.word_or("auto", checks.integer_between(1, 256)), default=1)
    executor: Literal["process", "thread"] = checked(checks.executor, default="process")
    ranks_per_node: int | Literal["gpu"] = checked(checks.word_or("gpu", checks.integer_between(1, 64)), default=1)

    _older: ClassVar[Rules] = {
        "buffer": ignored("the next call is sent to a rank as soon as the previous one ends", 0),
        "reuse_processes": ignored("processes of ranks are always reused", True),
    }


_CALLS_LIMIT = "set the time limit of calls with @sky.function(timeout=...)"
_TRIES_AGAIN = "a start retries automatically, within start_timeout="
_IS_FIXED = "a pool keeps the number of machines that it was started with"
_IS_HEALTHY = "a node counts as lost after lost_after= seconds without an answer; health commands are not supported"
_PARTS_OF_START = ("provision_timeout", "ssh_timeout", "bootstrap_timeout", "worker_timeout")


@value(kw_only=True, frozen=True)
class Options(ValidatedValue):
    """Behavior of a pool.

    Args:
        fail_fast: Stop all other ranks at the first real failure of a rank.
        grace: Seconds between SIGTERM and SIGKILL when a process is stopped. None for 30 seconds if the rank has its
            own SIGTERM handler, which may save a checkpoint, and 5 seconds otherwise. Ranks that are stopped because
            of a preemption have at least until the machine ends. With None, ranks that are stopped for another reason
            after a preemption notice also have at least until the machine ends.
        console: Print the output of ranks, each line with its rank.
        idle_timeout: Seconds without a client and without a run after which the pool ends itself.
        ttl: Seconds after which the pool ends itself unless a run is active. None for no limit.
        budget: Maximum cost of the pool's machines in dollars. A warning is shown at 80 percent. At 100 percent the
            pool is torn down; the app asks first. Clients enforce the budget, so a run without a client continues
            beyond the budget.
        log_limit: Maximum bytes that a rank may print to each stream during one run, as a number or text ("10 GB").
            Further output is dropped, with a note in the log. 0 for no limit. It also limits
            the metrics, and the previews of images, of each worker process of a rank.
        collect_metrics: Record metrics and progress that ranks print, or log with TensorBoard, W&B, MLflow, Lightning,
            Hugging Face or Keras, in addition to those of ``sky.log``. The variable SKYWARD_COLLECT_METRICS=0 of the
            ranks disables it, too.
        keep_results: How long hosts store retained results after the pool has ended, as text ("7d", "12 hours") or
            seconds. With 0, hosts store no results.
        keep_outputs: Bytes of unfetched output files, the newest first, that are downloaded to ``outputs/POOL/`` before
            machines are deleted, as a number or text ("1 GB"). All other files are lost, and the receipt lists them.
            Hosts that are not deleted keep their files.
        start_timeout: Maximum seconds for the startup of the nodes.
        wait_for_capacity: How long a start retries if no machines are available, as text ("2h") or seconds, in addition
            to ``start_timeout``. 0 tries once.
        on_loss: Reaction to a lost node: "fail" continues with fewer nodes, "replace" requests another machine, for up
            to ``start_timeout`` seconds, during which broadcasts wait. "restart" also starts failed calls again with
            the same arguments: calls on all ranks, and single calls, without streamed arguments and yielded values.
        restarts: With ``on_loss="restart"``: restarts of a run after lost ranks, nodes or killed processes. Preempted
            machines do not count.
        error_restarts: With ``on_loss="restart"``: restarts of a run after errors of its code. The same error at the
            same place, without progress (``sky.log(step=...)`` or a new checkpoint) in between, ends the run.
        preemption_restarts: With ``on_loss="restart"``: restarts of a run after preemptions. None for no limit.
        restart_smaller: With ``on_loss="restart"`` and a range of nodes such as "2:8": if a lost node cannot be
            replaced, calls on all nodes continue on the remaining nodes, at least the minimum. A later restart uses all
            nodes again. If machines return while the newest checkpoint is less than 5 minutes old, ranks save and
            restart.
        checkpoint_store: URL of a folder to which this client copies complete checkpoints, such as "s3://bucket/runs",
            "file:///mnt/shared", or another URL of fsspec. Credentials come from the client's environment.
        keep_checkpoints: Number of the newest complete checkpoints of a run that this client and the store keep.
            Applies to folders and files whose name has a step or an epoch.
        checkpoint_limit: Maximum bytes of complete checkpoints of a run on this client, as a number or text ("20 GB").
            The newest one is always kept.
        resume: Id of an earlier run whose checkpoints the runs of this pool continue. Their ``sky.checkpoint_dir()`` is
            the folder of that run, with its newest complete checkpoint from this client or the store.
        lost_after: Seconds without an answer after which a node counts as lost and its runs fail. None to wait forever.
            The machine of a lost node is not terminated, because only the connection may have failed.
        cluster: Whether nodes may connect to each other. If False, ranks are standalone: they do not know the head
            address or their peers, a rank that dies does not stop others (but see ``fail_fast``), the client sends all
            data, and plugins that need peers are rejected.
        rendezvous: Set the variables of torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and more) in ranks of a
            broadcast, if there are several.
        debug_wait: How long a rank waits at ``breakpoint()`` for a debugger, as text ("10m") or seconds. 0 continues at
            once, with a line in the log.
        nice: Niceness of ranks, from 0 (normal priority) to 19. For pools on this machine the app uses 5, so that its
            own terminal stays responsive.
        allow_apt: Allow a local pool to install the Debian packages of its image on this machine, as root. Other
            machines always install them.
        secrets: Values to redact in logs, summaries and errors, in addition to environment variables with secret names.
            Each has at least 8 characters. They are never written to disk.
        worker: Same as for ``Compute``. Set it only here or only there.
        selection: Same as for ``Compute``. Set it only here or only there.

    Raises:
        SpecError: If a value is invalid.
    """

    fail_fast: bool = checked(checks.flag, default=True)
    grace: float | None = checked(checks.optional(checks.seconds(least=0, most=3600)), default=None)
    console: bool = checked(checks.console, default=True)
    idle_timeout: float = checked(checks.seconds(), default=600.0)
    ttl: float | None = checked(checks.optional(checks.seconds()), default=None)
    budget: float | None = checked(checks.optional(checks.positive_number), default=None)
    log_limit: int | str = checked(checks.size, default="10 GB")
    collect_metrics: bool = checked(checks.flag, default=True)
    keep_results: float | str = checked(checks.duration, default="7d")
    keep_outputs: int | str = checked(checks.size, default="1 GB")
    start_timeout: float = checked(checks.seconds(), default=300.0)
    wait_for_capacity: float | str = checked(checks.duration, default=0.0)
    on_loss: Literal["fail", "replace", "restart"] = checked(
        checks.one_of("fail", "replace", "restart"), default="fail"
    )
    restarts: int = checked(checks.integer_between(0, 1000), default=3)
    error_restarts: int = checked(checks.integer_between(0, 1000), default=0)
    preemption_restarts: int | None = checked(checks.optional(checks.integer_between(0, 1000)), default=None)
    restart_smaller: bool = checked(checks.flag, default=False)
    checkpoint_store: str | None = checked(checks.optional(checks.store_url), default=None)
    keep_checkpoints: int = checked(checks.integer_between(1, 10_000), default=2)
    checkpoint_limit: int | str = checked(checks.size, default="20 GB")
    resume: str | None = checked(checks.optional(checks.run_id), default=None)
    lost_after: float | None = checked(checks.optional(checks.seconds()), default=60.0)
    cluster: bool = checked(checks.optional(checks.flag, True), default=True)
    rendezvous: bool = checked(checks.flag, default=True)
    debug_wait: float | str = checked(checks.duration, default=0.0)
    nice: int = checked(checks.integer_between(0, 19), default=0)
    allow_apt: bool = checked(checks.flag, default=False)
    secrets: Sequence[str] = checked(checks.tuple_of(_check_secret), default=(), repr=False)
    worker: Worker | None = checked(checks.optional(checks.instance(Worker)), default=None)
    selection: str | None = checked(checks.optional(checks.text), default=None)

    _older: ClassVar[Rules] = {
        "ready_timeout": renamed("start_timeout"),
        "checkpoints": renamed("checkpoint_store"),
        "retry_on_interruption": ignored(
            'a call on a preempted machine fails; on_loss="restart" starts it again on another machine',
            0,
        ),
        "default_compute_timeout": ignored(_CALLS_LIMIT, 0),
        "task_run_timeout": ignored(_CALLS_LIMIT, 0),
        "task_queue_timeout": ignored("the time in the queue is not limited", 0),
        "shutdown_timeout": ignored("grace= limits the end of ranks; the duration of a teardown is not limited"),
        "provision_retry_delay": ignored(_TRIES_AGAIN),
        "max_provision_attempts": ignored(_TRIES_AGAIN),
        "ssh_retry_interval": ignored(_TRIES_AGAIN),
        "autoscale_cooldown": ignored(_IS_FIXED),
        "autoscale_idle_timeout": ignored(_IS_FIXED),
        "reconcile_tick_interval": ignored(_IS_FIXED),
        "health_checker": ignored(_IS_HEALTHY),
        "health_command": ignored(_IS_HEALTHY),
        "health_interval": ignored(_IS_HEALTHY),
        "health_failures": ignored(_IS_HEALTHY),
        "strict_version": ignored("nodes always run this client's release", True, False),
        "logging": ignored("set the variable SKYWARD_LOG to write a log", True, False),
    }

    @classmethod
    def older_words(cls) -> set[str]:
        """Return the deprecated names of this class's arguments."""
        return {*cls._older, *_PARTS_OF_START}

    @classmethod
    def _today(cls, args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
        parts = [given.get(name) for name in _PARTS_OF_START]
        if given.get("ready_timeout") is None and any(each is not None for each in parts):
            # Older API versions have a limit for each part of a start. Use their sum as the limit of the start, but at
            # least the default.
            given.setdefault("start_timeout", max(300.0, sum(each for each in parts if each is not None)))
        return super()._today(args, {name: value for name, value in given.items() if name not in _PARTS_OF_START})

    @property
    def uses_checkpoints(self) -> bool:
        """Whether the files in ``sky.checkpoint_dir()`` are copied to other machines."""
        return self.on_loss == "restart" or bool(self.checkpoint_store or self.resume)

    @property
    def replaces_lost_nodes(self) -> bool:
        """Whether another machine takes the place of a lost one."""
        return self.on_loss != "fail"

    def describe(self) -> dict[str, Any]:
        """Return the options as JSON types, without secrets, and without fields that ``PoolSpec`` stores itself."""
        return {name: value for name, value in asdict(self).items() if name not in ("secrets", "worker", "selection")}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Options:
        """Return the options that ``describe`` wrote. Unknown keys of other releases are ignored.

        Args:
            data: Result of ``describe``.

        Raises:
            SpecError: If a value is invalid.
        """
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})


NO_VOLUMES = (
    "buckets are not mounted: download input data in the function, or send it with the working folder; "
    "sky.Image(outputs=[...]) downloads files that ranks write"
)


@value(kw_only=True, frozen=True)
class Spec(ValidatedValue):
    """One alternative for the machines of a pool; ``Compute`` accepts several. Numbers are minimums.

        sky.Spec(provider=sky.AWS(region="us-east-1"), accelerator="A100:8", max_hourly_cost=30)

    Args:
        provider: Provider of the machines. ``Local`` if None.
        accelerator: Accelerator of each node, from ``sky.accelerators`` or as text. None for no requirement.
        nodes: Number of machines, or a range as for ``Compute``; the same in all specs of a pool. None for the argument
            of ``Compute``.
        vcpus: CPU threads of each machine.
        memory_gb: Memory of each machine in GB.
        architecture: "x86_64" or "arm64".
        region: Region, or a list of regions.
        max_hourly_cost: Maximum price of one machine in dollars per hour, including disk and address.
        allocation: "on-demand", "spot", "spot-if-available" or "cheapest" of both. None for the argument of
            ``Compute``, or on demand.
        disk_gb: Disk size of each machine in GB.
        image: Same as for ``Compute``, and the same in all specs. Set it only here or only there.
        plugins: Same as for ``Compute``, and the same in all specs. Set it only here or only there.
        ttl: Same as for ``Compute``, and the same in all specs. Set it only here or only there.

    Raises:
        SpecError: If a value is invalid.
    """

    provider: ProviderLike | None = None
    accelerator: AcceleratorLike | None = None
    nodes: int | Nodes | str | None = checked(checks.optional(parse_node_count), default=None)
    vcpus: float | None = checked(checks.optional(checks.threads), default=None)
    memory_gb: float | None = checked(checks.optional(checks.positive_number), default=None)
    architecture: str | None = checked(checks.optional(checks.one_of("x86_64", "arm64")), default=None)
    region: str | Sequence[str] | None = checked(checks.optional(checks.one_or_tuple_of(checks.text)), default=None)
    max_hourly_cost: float | None = checked(checks.optional(checks.positive_number), default=None)
    allocation: str | None = checked(
        checks.optional(checks.one_of_words("on-demand", "spot", "spot-if-available", "cheapest")),
        default=None,
    )
    disk_gb: int | None = checked(checks.optional(checks.integer_between(1, 65536)), default=None)
    image: Image | None = checked(checks.optional(checks.instance(Image)), default=None)
    plugins: Sequence[HasHooks] = checked(checks.tuple_of(), default=())
    ttl: float | None = checked(checks.optional(checks.seconds(least=0)), default=None)

    _in_order: ClassVar[Sequence[str]] = ("provider", "accelerator", "vcpus", "memory_gb", "region")
    _older: ClassVar[Rules] = {
        "cpus": renamed("vcpus"),
        "volumes": rejected(NO_VOLUMES, (), []),
    }

    @property
    def chooses(self) -> list[str]:
        """Names of the given fields that require a provider with offers."""
        names = ("vcpus", "memory_gb", "architecture", "region", "max_hourly_cost", "allocation", "disk_gb")
        return [name for name in names if getattr(self, name) is not None]


@value
class Interpreter(Value):
    """Python interpreter on this machine that was chosen for a script.

    Attributes:
        path: Path of the program, which may not exist yet if its environment must be created.
        prefix: Folder of the interpreter's environment.
        version: Version, such as "3.12.1". A plan runs no interpreter, so its version may be incomplete ("3.12") or "".
        source: Reason for the choice: "--python", ".venv of project train" or "this program's own".
        chosen: Whether the user, a script, a project or a shell chose it. False for the default.
        base: Interpreter from which the script's environment is created; "" if no environment is created.
        environment: Packages installed in it, as the fields of an image.
        notes: Rejected candidates and the reasons.
    """

    path: str
    prefix: str
    version: str
    source: str
    chosen: bool = True
    base: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"Python {self.version or '?'} at {self.path} ({self.source})"

    @property
    def minor(self) -> str:
        """Minor version, such as "3.12". Bytecode depends on it."""
        return ".".join(self.version.split(".")[:2])

    @property
    def for_hosts(self) -> list[str]:
        """Python that hosts need to run pickled functions: its version, and a path that may also exist on hosts.

        If an environment is created for the script on this machine, hosts create one as well.
        """
        return [self.minor, self.base or self.path]

    def describe(self) -> dict[str, Any]:
        """Return all attributes as JSON types. URLs of package indexes may contain credentials."""
        return {each.name: getattr(self, each.name) for each in fields(self)} | {"notes": list(self.notes)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Interpreter:
        """Return the interpreter that ``describe`` wrote. Unknown keys of other releases are ignored.

        Args:
            data: Result of ``describe``.
        """
        known = {each.name for each in fields(cls)}
        values = {name: given for name, given in data.items() if name in known}
        return cls(**values | {"notes": tuple(values.get("notes", ()))})


@value(kw_only=True, frozen=True)
class PoolSpec(ValidatedValue):
    """Complete specification of a pool: the request of ``Compute``. ``describe`` returns its storable part.

    Args:
        name: Name of the pool: 1 to 48 lower-case letters, digits and hyphens.
        provider: Provider of the machines.
        nodes: Number of machines, or a range: ``Nodes`` or text such as "2:8".
        accelerator: Accelerator of each node. None for no requirement.
        wish: Further requirements, for providers that choose machines. None for none.
        image: Environment of the nodes.
        plugins: Frameworks to set up, in order of entry.
        worker: How each node runs calls.
        options: Behavior of the pool.
        interpreter: Python of this machine that loads the script. None for this process's Python.

    Raises:
        SpecError: If a value is invalid.
    """

    name: str = checked(_check_pool_name)
    provider: Any
    nodes: int | Nodes = checked(parse_node_count, default=1)
    accelerator: Any = None
    wish: MachineRequirements | None = None
    image: Image = checked(checks.instance(Image), default_factory=Image)
    plugins: Sequence[Any] = checked(checks.tuple_of(), default=())
    worker: Worker = checked(checks.instance(Worker), default_factory=Worker)
    options: Options = checked(checks.instance(Options), default_factory=Options)
    interpreter: Interpreter | None = checked(checks.optional(checks.instance(Interpreter)), default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        options = self.options
        if options.restart_smaller and not (
            options.on_loss == "restart" and options.cluster and self.least_nodes < self.most_nodes
        ):
            raise SpecError(
                'requires a range of nodes such as nodes="2:8", on_loss="restart" and cluster=True. '
                "Set these, or remove restart_smaller",
                "restart_smaller",
            )

    @property
    def needs(self) -> MachineRequirements:
        """All requirements for each machine, including the accelerator."""
        # Imported late, because most pools have no requirements for machines.
        from skyward_core.model.accelerators import resolve
        from skyward_core.model.offers_and_rental_plans import MachineRequirements

        return replace(self.wish or MachineRequirements(), accelerator=resolve(self.accelerator))

    @property
    def concurrency(self) -> int:
        """Tasks that one rank runs at the same time (1 if "auto" is not resolved yet)."""
        return self.worker.concurrency if isinstance(self.worker.concurrency, int) else 1

    @property
    def ranks_per_node(self) -> int:
        """Ranks on each node (1 if "gpu" is not resolved yet)."""
        return self.worker.ranks_per_node if isinstance(self.worker.ranks_per_node, int) else 1

    @property
    def least_nodes(self) -> int:
        """Minimum number of machines."""
        return self.nodes.min if isinstance(self.nodes, Nodes) else self.nodes

    @property
    def most_nodes(self) -> int:
        """Maximum number of machines."""
        return self.nodes.max if isinstance(self.nodes, Nodes) else self.nodes

    @property
    def world_size(self) -> int:
        """Maximum number of ranks of the gang, as far as ``ranks_per_node`` is known."""
        return self.most_nodes * self.ranks_per_node

    def describe(self) -> dict[str, Any]:
        """Return the spec as JSON types, without secrets: no values of variables, and redacted URLs."""
        sanitize = make_sanitizer(os.environ | self.image.env)
        extra = {"rents": True} if isinstance(self.provider, Rents) else {}
        return extra | {
            "name": self.name,
            "provider": self.provider.name,
            "nodes": self.most_nodes,  # the maximum; the number of created machines replaces it in the ledger
            "least_nodes": self.least_nodes,
            "accelerator": None if self.accelerator is None else str(self.accelerator),
            "plugins": [plugin.name for plugin in self.plugins],
            "worker": asdict(self.worker),
            "options": self.options.describe(),
            "image": map_strings(self.image.describe(), sanitize),
            "variables": sorted(self.image.env),
            "interpreter": self.interpreter and map_strings(self.interpreter.describe(), sanitize),
        }
