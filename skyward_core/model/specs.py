"""PoolSpec, Image, Worker, Options and their validation."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from skyward_core.model import spec_field_checks
from skyward_core.model.errors import SpecError
from skyward_core.model.older_api_arguments import (
    AcceptsDeprecatedArguments,
    Rules,
    apply_rules,
    ignored,
    ignored_silently,
    rejected,
    renamed,
)
from skyward_core.model.provider_capabilities import Rents
from skyward_core.model.script_interpreter import Interpreter
from skyward_core.util.light_dataclass import Value, checked, value
from skyward_core.util.redaction import MIN_SECRET_LENGTH, make_sanitizer, map_strings

if TYPE_CHECKING:
    from skyward_core.model.offers import MachineRequirements
    from skyward_core.model.type_aliases import AcceleratorLike, HasHooks, ProviderLike


class ValidatedValue(Value, metaclass=AcceptsDeprecatedArguments):
    """Values that are checked when they are made; ``dataclasses.replace`` makes changed ones."""

    _older: ClassVar[Rules] = {}  # older words for its arguments
    _in_order: ClassVar[Sequence[str]] = ()  # arguments that older generations take by position
    _more: ClassVar[Sequence[str]] = ()  # other words, which a class of it knows what to do with

    @classmethod
    def _today(cls, args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
        """Arguments by the words of today, of what was given by any.

        Raises:
            TypeError: there are more, or others, than it takes.
            SpecError: one is refused.
        """
        if args:
            if len(args) > len(cls._in_order):
                raise TypeError(
                    f"sky.{cls.__name__} takes its arguments by name, and was given {len(args)} by position"
                )
            given = dict(zip(cls._in_order, args, strict=False)) | given
        if not given.keys() <= cls.__dataclass_fields__.keys():
            from skyward_core.model.older_api_arguments import check_unknown_arguments

            own = [each.name for each in fields(cls)]
            check_unknown_arguments(f"sky.{cls.__name__}", given, [*own, *cls._in_order, *cls._older, *cls._more])
        if given.keys() & cls._older.keys():
            return apply_rules(f"sky.{cls.__name__}", cls._older, given)
        return given

    def __post_init__(self) -> None:
        for each in fields(self):
            try:
                if check := each.metadata.get("check"):
                    object.__setattr__(self, each.name, check(getattr(self, each.name)))
            except ValueError as error:
                raise SpecError(str(error), each.name) from None


@value(kw_only=True, frozen=True)
class Nodes(ValidatedValue):
    """A number of machines that is left open: as many as can be had. ``str`` of it is short, such as "2:8".

    ``Nodes(4)`` is four. A pool has as many machines as it was started with: to begin with some and grow, as
    ``Nodes(initial=2, max=8)`` asks for, is refused.

    Args:
        min: so many at least, or the pool does not start.
        max: so many at most.

    Raises:
        SpecError: a value makes no sense.
    """

    min: int = checked(spec_field_checks.integer_between(1, 1024))
    max: int = checked(spec_field_checks.integer_between(1, 1024))

    if TYPE_CHECKING:

        def __init__(self, initial: int = ..., *, min: int = ..., max: int = ...) -> None: ...

    _in_order: ClassVar[Sequence[str]] = ("initial",)
    _more: ClassVar[Sequence[str]] = ("desired",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max < self.min:
            raise SpecError(f"should be {self.min} or more, as min is (got {self.max})", "max")

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
            raise SpecError(f"{_ELASTIC_ERROR} (got {words[0]}={first!r}, {_format_values(bounds)})", "nodes")
        return {"min": first, "max": first}


_ELASTIC_ERROR = (
    "a pool that begins with some machines and has others later is not to be had: say nodes=4 for so many, or "
    "nodes=sky.Nodes(min=2, max=8) for as many as can be had when it starts"
)


def _format_values(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in given.items())


def parse_node_count(value: Any) -> int | Nodes:
    """A number, or a range of them, which may be text; a range of one number is that number."""
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


_check_node_count: Callable[[Any], int] = spec_field_checks.integer_between(1, 1024)


NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?")


def _check_pool_name(value: Any) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ValueError(
            f"{value!r:.60} is no pool name: use 1 to 48 lower-case letters, digits and hyphens, "
            "with a letter or digit at both ends"
        )
    return value


def generate_pool_name(script: str) -> str:
    """A name for a pool of which nothing is said but the script that wants it: its name, and what tells two apart."""
    import secrets  # late: most pools are given a name

    stem = PurePath(script).stem.lower()
    letters = "".join(c if c.isascii() and c.isalnum() else "-" for c in stem).strip("-")[:32]
    return f"{letters or 'pool'}-{secrets.token_hex(2)}"


def _check_secret(value: Any) -> str:
    if not isinstance(value, str) or len(value) < MIN_SECRET_LENGTH:  # and no word of what it is
        raise ValueError(
            f"should be texts of {MIN_SECRET_LENGTH} characters or more: shorter ones stand in other words, too"
        )
    return value


@value(kw_only=True, frozen=True)
class PipIndex(ValidatedValue):
    """An extra package index.

    Args:
        url: its address, as pip's ``--extra-index-url`` takes it.
        packages: names of the packages that it serves; none for all.

    Raises:
        SpecError: a value makes no sense; as of all that is made here.
    """

    url: str = checked(spec_field_checks.text)
    packages: Sequence[str] = checked(spec_field_checks.tuple_of(spec_field_checks.text), default=())


@value(kw_only=True, frozen=True)
class Image(ValidatedValue):
    """What a node's environment holds.

    Args:
        python: version such as "3.12"; None, or "auto", for the client's own.
        pip: requirements, as pip takes them.
        pip_indexes: extra package indexes.
        lock: path of a lock: what it has is installed in exactly those versions, before ``pip``, which can change
            none of it. ``uv.lock``, ``pylock.toml``, or lines ``name==version`` as ``pip freeze`` writes them. A path
            begins in ``workdir``; what is not there is looked for above it, up to where the project ends.
        requirements: path of a requirements file, as pip takes it; as ``lock`` otherwise.
        project: install what the project's ``pyproject.toml`` depends on. Of ``lock``, ``requirements`` and
            ``project`` only one can be given.
        apt: Debian packages.
        env: environment variables of the ranks.
        setup: shell commands, run once per environment.
        workdir: folder that travels to the nodes, and that ranks work in, seen from the current one; None for that, or
            the script's own where the script lies elsewhere.
        includes: glob patterns of files of the working folder to take along although ignored.
        excludes: glob patterns of files of the working folder to leave out.
        outputs: patterns of files that ranks write there and that are brought to ``outputs/RUN/`` here, during the run
            and after it, such as ``"out/**"`` or ``"*.pt"``. On this machine they are here already.

    Raises:
        SpecError: a value makes no sense.
    """

    python: str | None = checked(spec_field_checks.optional(spec_field_checks.python_version), default=None)
    pip: Sequence[str] = checked(spec_field_checks.tuple_of(spec_field_checks.text), default=())
    pip_indexes: Sequence[PipIndex] = checked(
        spec_field_checks.tuple_of(spec_field_checks.instance(PipIndex)), default=()
    )
    lock: str | os.PathLike[str] | None = checked(spec_field_checks.optional(spec_field_checks.path), default=None)
    requirements: str | os.PathLike[str] | None = checked(
        spec_field_checks.optional(spec_field_checks.path), default=None
    )
    project: bool = checked(spec_field_checks.flag, default=False)
    apt: Sequence[str] = checked(spec_field_checks.tuple_of(spec_field_checks.text), default=())
    env: dict[str, str] = checked(spec_field_checks.variables, default_factory=dict, repr=False)  # may hold secrets
    setup: Sequence[str] = checked(spec_field_checks.tuple_of(spec_field_checks.text), default=())
    workdir: str | os.PathLike[str] | None = checked(spec_field_checks.optional(spec_field_checks.path), default=None)
    includes: Sequence[str] = checked(spec_field_checks.tuple_of(spec_field_checks.upload_pattern), default=())
    excludes: Sequence[str] = checked(spec_field_checks.tuple_of(spec_field_checks.upload_pattern), default=())
    outputs: Sequence[str] = checked(spec_field_checks.tuple_of(spec_field_checks.output_pattern), default=())

    _older: ClassVar[Rules] = {
        "base": rejected("nodes have the machine image of their provider, such as sky.AWS(ami=...)"),
        "shell_vars": rejected("what is plain text goes to env=, what a shell makes to setup=", {}),
        "skyward_source": ignored_silently,
        "skyward": ignored_silently,
        "metrics": ignored("compute.metrics() has what machines are measured at", False, True, (), []),
        "bootstrap_timeout": ignored("sky.Options(start_timeout=...) bounds the whole start", 300, 900),
        "warm": ignored("no machine image is made", False),
        "mutable": ignored("a pool keeps its image", False),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        said = self._files
        if len(said) > 1:
            raise SpecError(f"{' and '.join(said)} each say what is installed: leave all but one out", said[0])

    @property
    def packages_by(self) -> str:
        """The field that names the project's file with its packages; "" where none does."""
        return next(iter(self._files), "")

    @property
    def _files(self) -> list[str]:
        return [each for each in ("lock", "requirements", "project") if getattr(self, each) not in (None, False)]

    def describe(self) -> dict[str, Any]:
        """The image as JSON, without its variables; URLs may hold credentials."""
        return {name: value for name, value in asdict(self).items() if name != "env"}


@value(kw_only=True, frozen=True)
class Worker(ValidatedValue):
    """How a node runs what it is given.

    Args:
        concurrency: tasks (``>>``, gather) that one rank runs at the same time; broadcasts are one at a time. "auto"
            for one per MIG slice or GPU that a node is asked for, else per processor (``vcpus``, or this machine's
            where nodes are processes here).
        executor: "process" runs each in an interpreter of its own, on its main thread;
            "thread" runs them as threads of the rank's one interpreter.
        ranks_per_node: ranks of the gang on each node; "gpu" for one per GPU.

    Raises:
        SpecError: a value makes no sense.
    """

    concurrency: int | Literal["auto"] = checked(
        spec_field_checks.word_or("auto", spec_field_checks.integer_between(1, 256)), default=1
    )
    executor: Literal["process", "thread"] = checked(spec_field_checks.executor, default="process")
    ranks_per_node: int | Literal["gpu"] = checked(
        spec_field_checks.word_or("gpu", spec_field_checks.integer_between(1, 64)), default=1
    )

    _older: ClassVar[Rules] = {
        "buffer": ignored("a rank has its next call as soon as the one before ends", 0),
        "reuse_processes": ignored("a rank's processes stay from call to call", True),
    }


_CALLS_LIMIT = "a call takes as long as its function says, @sky.function(timeout=...), or as it takes"
_TRIES_AGAIN = "a start tries again by itself, within start_timeout="
_IS_FIXED = "a pool has as many machines as it was started with"
_IS_HEALTHY = "a machine is taken as lost where it does not answer for lost_after= seconds, and no command is asked"
_PARTS_OF_START = ("provision_timeout", "ssh_timeout", "bootstrap_timeout", "worker_timeout")


@value(kw_only=True, frozen=True)
class Options(ValidatedValue):
    """How a pool behaves.

    Args:
        fail_fast: stop the other ranks at the first real failure.
        grace: seconds between the polite signal (SIGTERM) and the final one (SIGKILL).
        console: print the ranks' logs as they come, each line with its rank.
        idle_timeout: seconds without a client and without a run after which the pool ends itself.
        ttl: seconds after which the pool ends itself unless a run is active; None for no limit.
        budget: dollars that the pool's machines may cost. At four fifths of it that is said, at the whole of it the
            pool is torn down; the app asks first. Clients watch it; a run that was left behind goes on.
        log_limit: bytes that a rank may print during one run, to each of its streams, as a number or in words
            ("10 GB"); what comes after them is dropped, and a line in the log says so. 0 for no limit.
        keep_results: how long results and logs that nobody has fetched stay on the hosts once the pool has ended, in
            words ("7d", "12 hours") or seconds; 0 keeps none.
        keep_outputs: bytes of files that ranks wrote, and that nobody has fetched, which are brought to
            ``outputs/POOL/`` before machines go that end with their pool, as a number or in words ("1 GB"); the newest
            first. What stays behind is lost, and named in the receipt. Hosts that stay keep them in any case.
        start_timeout: seconds that the nodes may take to come up.
        wait_for_capacity: how long a start tries again where there are no machines to be had, in words ("2h") or
            seconds; ``start_timeout`` counts beside it. 0 tries once.
        on_loss: what follows the loss of a host: "fail" degrades the pool; "replace" asks for another
            one, for up to ``start_timeout`` seconds, in which broadcasts wait.
        lost_after: seconds without an answer after which a node is taken as lost, and its runs fail; None to wait for
            ever. The machine itself is left as it is: it may only be out of our reach.
        cluster: whether nodes may reach each other; False makes standalone workers: ranks know no head address and
            no peers, one that dies takes no other with it (but see ``fail_fast``), all data comes from the client, and
            plugins that need peers are refused.
        rendezvous: set the variables that torchrun sets (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and more) in ranks
            that run a broadcast, where there is more than one.
        debug_wait: how long a rank which comes to ``breakpoint()`` waits there for somebody who debugs it, in words
            ("10m") or seconds; 0 has it go on at once, with a line in its log.
        nice: how much ranks give way to the other processes of their machine, from 0 (not at all) to 19. What the app
            launches on this machine has 5, so that the terminal which shows ranks stays alive beside them.
        allow_apt: let a pool on this machine install the Debian packages of its image here, where root runs it; on
            other machines they are installed anyway.
        secrets: values that are blanked in logs, summaries and errors, beside those that are known by the names of
            environment variables; each of 8 characters or more. They are written nowhere.
        worker: as ``Compute`` takes it; for either to say.
        selection: as ``Compute`` takes it; for either to say.

    Raises:
        SpecError: a value makes no sense.
    """

    fail_fast: bool = checked(spec_field_checks.flag, default=True)
    grace: float = checked(spec_field_checks.seconds(least=0, most=3600), default=5.0)
    console: bool = checked(spec_field_checks.console, default=True)
    idle_timeout: float = checked(spec_field_checks.seconds(), default=600.0)
    ttl: float | None = checked(spec_field_checks.optional(spec_field_checks.seconds()), default=None)
    budget: float | None = checked(spec_field_checks.optional(spec_field_checks.dollars), default=None)
    log_limit: int | str = checked(spec_field_checks.size, default="10 GB")
    keep_results: float | str = checked(spec_field_checks.duration, default="7d")
    keep_outputs: int | str = checked(spec_field_checks.size, default="1 GB")
    start_timeout: float = checked(spec_field_checks.seconds(), default=300.0)
    wait_for_capacity: float | str = checked(spec_field_checks.duration, default=0.0)
    on_loss: Literal["fail", "replace"] = checked(spec_field_checks.one_of("fail", "replace"), default="fail")
    lost_after: float | None = checked(spec_field_checks.optional(spec_field_checks.seconds()), default=60.0)
    cluster: bool = checked(spec_field_checks.default_if_none(True, spec_field_checks.flag), default=True)
    rendezvous: bool = checked(spec_field_checks.flag, default=True)
    debug_wait: float | str = checked(spec_field_checks.duration, default=0.0)
    nice: int = checked(spec_field_checks.integer_between(0, 19), default=0)
    allow_apt: bool = checked(spec_field_checks.flag, default=False)
    secrets: Sequence[str] = checked(spec_field_checks.tuple_of(_check_secret), default=(), repr=False)
    worker: Worker | None = checked(spec_field_checks.optional(spec_field_checks.instance(Worker)), default=None)
    selection: str | None = checked(spec_field_checks.optional(spec_field_checks.text), default=None)

    _older: ClassVar[Rules] = {
        "ready_timeout": renamed("start_timeout"),
        "retry_on_interruption": ignored(
            'a call whose machine is taken back fails, and says so; on_loss="replace" has another for the next',
            0,
        ),
        "default_compute_timeout": ignored(_CALLS_LIMIT, 0),
        "task_run_timeout": ignored(_CALLS_LIMIT, 0),
        "task_queue_timeout": ignored("a call waits for its turn for as long as it takes", 0),
        "shutdown_timeout": ignored("grace= is what ranks have to end; a teardown takes what it takes"),
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
        "strict_version": ignored("nodes have this client's own release, always", True, False),
        "logging": ignored("the variable SKYWARD_LOG has a log written, and says of what", True, False),
    }

    @classmethod
    def older_words(cls) -> set[str]:
        """Older words for arguments, of which each is heeded, told of, or refused."""
        return {*cls._older, *_PARTS_OF_START}

    @classmethod
    def _today(cls, args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
        parts = [given.get(name) for name in _PARTS_OF_START]
        if given.get("ready_timeout") is None and any(each is not None for each in parts):
            # Together they are a start; one that is asked to wait longer than ours for one part waits so long.
            given.setdefault("start_timeout", max(300.0, sum(each for each in parts if each is not None)))
        return super()._today(args, {name: value for name, value in given.items() if name not in _PARTS_OF_START})

    def describe(self) -> dict[str, Any]:
        """The options as JSON, without secrets, and without what is the pool's."""
        return {name: value for name, value in asdict(self).items() if name not in ("secrets", "worker", "selection")}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Options:
        """The options that ``describe`` wrote; what only another release knows is passed over.

        Args:
            data: what it wrote.

        Raises:
            SpecError: a value makes no sense.
        """
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})


NO_VOLUMES = (
    "buckets are not mounted: fetch what a rank needs in the function, or have it travel with the working folder; "
    "sky.Image(outputs=[...]) brings back what ranks write"
)


@value(kw_only=True, frozen=True)
class Spec(ValidatedValue):
    """One way to have a pool's machines, of several that ``Compute`` may be given. Numbers are the least that will do.

    Args:
        provider: where machines come from; ``Local`` when None.
        accelerator: what each node needs, as ``sky.accelerators`` makes it or as text; None for nothing.
        nodes: how many machines, or a range of numbers as ``Compute`` takes it, the same in all specs of a pool; None
            for what ``Compute`` was told.
        vcpus: processor threads of each machine.
        memory_gb: memory of each in GB.
        architecture: "x86_64" or "arm64".
        region: where; several are a list.
        max_hourly_cost: dollars that an hour of one machine may cost, with disk and address.
        allocation: "on-demand", "spot", "spot-if-available" or "cheapest" of both; None for what ``Compute`` was told,
            or on demand.
        disk_gb: size of each machine's disk in GB.
        image: as ``Compute`` takes it; for either to say, and of several specs the same.
        plugins: likewise.
        ttl: likewise.

    Raises:
        SpecError: a value makes no sense.
    """

    provider: ProviderLike | None = None
    accelerator: AcceleratorLike | None = None
    nodes: int | Nodes | str | None = checked(spec_field_checks.optional(parse_node_count), default=None)
    vcpus: float | None = checked(spec_field_checks.optional(spec_field_checks.threads), default=None)
    memory_gb: float | None = checked(spec_field_checks.optional(spec_field_checks.positive_number), default=None)
    architecture: str | None = checked(
        spec_field_checks.optional(spec_field_checks.one_of("x86_64", "arm64")), default=None
    )
    region: str | Sequence[str] | None = checked(
        spec_field_checks.optional(spec_field_checks.one_or_tuple_of(spec_field_checks.text)), default=None
    )
    max_hourly_cost: float | None = checked(spec_field_checks.optional(spec_field_checks.positive_number), default=None)
    allocation: str | None = checked(
        spec_field_checks.optional(
            spec_field_checks.one_of_words("on-demand", "spot", "spot-if-available", "cheapest")
        ),
        default=None,
    )
    disk_gb: int | None = checked(spec_field_checks.optional(spec_field_checks.integer_between(1, 65536)), default=None)
    image: Image | None = checked(spec_field_checks.optional(spec_field_checks.instance(Image)), default=None)
    plugins: Sequence[HasHooks] = checked(spec_field_checks.tuple_of(spec_field_checks.anything), default=())
    ttl: float | None = checked(spec_field_checks.optional(spec_field_checks.seconds(least=0)), default=None)

    _in_order: ClassVar[Sequence[str]] = ("provider", "accelerator", "vcpus", "memory_gb", "region")
    _older: ClassVar[Rules] = {
        "cpus": renamed("vcpus"),
        "volumes": rejected(NO_VOLUMES, (), []),
    }

    @property
    def chooses(self) -> list[str]:
        """What is said of machines that only a provider with offers can heed, by its names."""
        names = ("vcpus", "memory_gb", "architecture", "region", "max_hourly_cost", "allocation", "disk_gb")
        return [name for name in names if getattr(self, name) is not None]


@value(kw_only=True, frozen=True)
class PoolSpec(ValidatedValue):
    """One pool, whole: what ``Compute`` was asked for. ``describe`` gives what can be written down of it.

    Args:
        name: the pool's name: 1 to 48 lower-case letters, digits and hyphens.
        provider: where machines come from.
        nodes: how many machines; ``Nodes``, or text such as "2:8", for as many as can be had.
        accelerator: what each node needs; None for nothing.
        wish: what else each machine has to be, where the provider can choose; None for nothing.
        image: what the nodes' environment holds.
        plugins: frameworks to set up, in order of entry.
        worker: how each node runs what it is given.
        options: how the pool behaves.
        interpreter: the one that the script was given, of this machine; None for the one that runs this.

    Raises:
        SpecError: a value makes no sense.
    """

    name: str = checked(_check_pool_name)
    provider: Any
    nodes: int | Nodes = checked(parse_node_count, default=1)
    accelerator: Any = None
    wish: MachineRequirements | None = None
    image: Image = checked(spec_field_checks.instance(Image), default_factory=Image)
    plugins: Sequence[Any] = checked(spec_field_checks.tuple_of(spec_field_checks.anything), default=())
    worker: Worker = checked(spec_field_checks.instance(Worker), default_factory=Worker)
    options: Options = checked(spec_field_checks.instance(Options), default_factory=Options)
    interpreter: Interpreter | None = checked(
        spec_field_checks.optional(spec_field_checks.instance(Interpreter)), default=None
    )

    @property
    def needs(self) -> MachineRequirements:
        """All that each machine has to be."""
        from skyward_core.model.accelerators import resolve  # late: most pools take machines as they are
        from skyward_core.model.offers import MachineRequirements

        return replace(self.wish or MachineRequirements(), accelerator=resolve(self.accelerator))

    @property
    def concurrency(self) -> int:
        """Tasks that one rank runs at the same time (one where that is "auto" and nobody has said)."""
        return self.worker.concurrency if isinstance(self.worker.concurrency, int) else 1

    @property
    def ranks_per_node(self) -> int:
        """Ranks on each node (one where it is "gpu" and the nodes have not told their GPUs yet)."""
        return self.worker.ranks_per_node if isinstance(self.worker.ranks_per_node, int) else 1

    @property
    def least_nodes(self) -> int:
        """Machines without which the pool does not start."""
        return self.nodes.min if isinstance(self.nodes, Nodes) else self.nodes

    @property
    def most_nodes(self) -> int:
        """Machines that it has at most."""
        return self.nodes.max if isinstance(self.nodes, Nodes) else self.nodes

    @property
    def world_size(self) -> int:
        """Ranks of the whole gang at most, as far as is known: see ``ranks_per_node``."""
        return self.most_nodes * self.ranks_per_node

    @property
    def may_have_peers(self) -> bool:
        """Whether there is, or as far as is known may be, more than one rank."""
        return self.world_size > 1 or self.worker.ranks_per_node == "gpu"

    def describe(self) -> dict[str, Any]:
        """The spec as JSON, without secrets: no variables, and neither credentials nor their values in URLs."""
        kept = make_sanitizer(os.environ | self.image.env)
        told = {"rents": True} if isinstance(self.provider, Rents) else {}
        return told | {
            "name": self.name,
            "provider": self.provider.name,
            "nodes": self.most_nodes,  # until the machines are written down
            "accelerator": None if self.accelerator is None else str(self.accelerator),
            "plugins": [plugin.name for plugin in self.plugins],
            "worker": asdict(self.worker),
            "options": self.options.describe(),
            "image": map_strings(self.image.describe(), kept),
            "variables": sorted(self.image.env),
            "interpreter": self.interpreter and map_strings(self.interpreter.describe(), kept),
        }
