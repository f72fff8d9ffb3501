"""What a person asks for: pool, image, worker, options. Values only; nothing here does anything."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, fields, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..wire.redact import SHORTEST, each_text, for_keeping
from . import spec_checks
from .capabilities import Rents
from .checked_value import CheckedValue
from .errors import SpecError
from .interpreter import Interpreter
from .node_range import Nodes, number_of_nodes
from .older_words import Rules, no_matter, refused, renamed, unheeded
from .spec_checks import Checks
from .value import value

if TYPE_CHECKING:
    from .accepted_types import AcceleratorLike, HasHooks, ProviderLike
    from .offer import Wish

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?")


def _pool_name(value: Any) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ValueError(
            f"{value!r:.60} is no pool name: use 1 to 48 lower-case letters, digits and hyphens, "
            "with a letter or digit at both ends"
        )
    return value


def made_up_name(script: str) -> str:
    """A name for a pool of which nothing is said but the script that wants it: its name, and what tells two apart."""
    import secrets  # late: most pools are given a name

    stem = PurePath(script).stem.lower()
    letters = "".join(c if c.isascii() and c.isalnum() else "-" for c in stem).strip("-")[:32]
    return f"{letters or 'pool'}-{secrets.token_hex(2)}"


def _secret(value: Any) -> str:
    if not isinstance(value, str) or len(value) < SHORTEST:  # and no word of what it is
        raise ValueError(
            f"should be texts of {SHORTEST} characters or more: shorter ones stand in other words, too"
        )
    return value


@value(kw_only=True, frozen=True)
class PipIndex(CheckedValue):
    """An extra package index.

    Args:
        url: its address, as pip's ``--extra-index-url`` takes it.
        packages: names of the packages that it serves; none for all.

    Raises:
        SpecError: a value makes no sense; as of all that is made here.
    """

    url: str
    packages: Sequence[str] = ()

    _checks: ClassVar[Checks] = {"url": spec_checks.text, "packages": spec_checks.several(spec_checks.text)}


@value(kw_only=True, frozen=True)
class Image(CheckedValue):
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

    python: str | None = None
    pip: Sequence[str] = ()
    pip_indexes: Sequence[PipIndex] = ()
    lock: str | os.PathLike[str] | None = None
    requirements: str | os.PathLike[str] | None = None
    project: bool = False
    apt: Sequence[str] = ()
    env: dict[str, str] = field(default_factory=dict, repr=False)  # may hold secrets
    setup: Sequence[str] = ()
    workdir: str | os.PathLike[str] | None = None
    includes: Sequence[str] = ()
    excludes: Sequence[str] = ()
    outputs: Sequence[str] = ()

    _older: ClassVar[Rules] = {
        "base": refused("nodes have the machine image of their provider, such as sky.AWS(ami=...)"),
        "shell_vars": refused("what is plain text goes to env=, what a shell makes to setup=", {}),
        "skyward_source": no_matter,
        "skyward": no_matter,
        "metrics": unheeded("compute.metrics() has what machines are measured at", False, True, (), []),
        "bootstrap_timeout": unheeded("sky.Options(start_timeout=...) bounds the whole start", 300, 900),
        "warm": unheeded("no machine image is made", False),
        "mutable": unheeded("a pool keeps its image", False),
    }
    _checks: ClassVar[Checks] = {
        "python": spec_checks.optional(spec_checks.python),
        "pip": spec_checks.several(spec_checks.text),
        "pip_indexes": spec_checks.several(spec_checks.instance(PipIndex)),
        "lock": spec_checks.optional(spec_checks.path),
        "requirements": spec_checks.optional(spec_checks.path),
        "project": spec_checks.flag,
        "apt": spec_checks.several(spec_checks.text),
        "env": spec_checks.variables,
        "setup": spec_checks.several(spec_checks.text),
        "workdir": spec_checks.optional(spec_checks.path),
        "includes": spec_checks.several(spec_checks.sent_pattern),
        "excludes": spec_checks.several(spec_checks.sent_pattern),
        "outputs": spec_checks.several(spec_checks.output_pattern),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        said = self._files
        if len(said) > 1:
            raise SpecError(
                f"{' and '.join(said)} each say what is installed: leave all but one out", said[0]
            )

    @property
    def packages_by(self) -> str:
        """The field that names the project's file with its packages; "" where none does."""
        return next(iter(self._files), "")

    @property
    def _files(self) -> list[str]:
        return [
            each for each in ("lock", "requirements", "project") if getattr(self, each) not in (None, False)
        ]

    def describe(self) -> dict[str, Any]:
        """The image as JSON, without its variables; URLs may hold credentials."""
        return {name: value for name, value in asdict(self).items() if name != "env"}


@value(kw_only=True, frozen=True)
class Worker(CheckedValue):
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

    concurrency: int | Literal["auto"] = 1
    executor: Literal["process", "thread"] = "process"
    ranks_per_node: int | Literal["gpu"] = 1

    _older: ClassVar[Rules] = {
        "buffer": unheeded("a rank has its next call as soon as the one before ends", 0),
        "reuse_processes": unheeded("a rank's processes stay from call to call", True),
    }
    _checks: ClassVar[Checks] = {
        "concurrency": spec_checks.word_or("auto", spec_checks.whole(1, 256)),
        "executor": spec_checks.executor,
        "ranks_per_node": spec_checks.word_or("gpu", spec_checks.whole(1, 64)),
    }


_CALLS_LIMIT = "a call takes as long as its function says, @sky.function(timeout=...), or as it takes"
_TRIES_AGAIN = "a start tries again by itself, within start_timeout="
_IS_FIXED = "a pool has as many machines as it was started with"
_IS_HEALTHY = (
    "a machine is taken as lost where it does not answer for lost_after= seconds, and no command is asked"
)
_PARTS_OF_START = ("provision_timeout", "ssh_timeout", "bootstrap_timeout", "worker_timeout")


@value(kw_only=True, frozen=True)
class Options(CheckedValue):
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

    fail_fast: bool = True
    grace: float = 5.0
    console: bool = True
    idle_timeout: float = 600.0
    ttl: float | None = None
    budget: float | None = None
    log_limit: int | str = "10 GB"
    keep_results: float | str = "7d"
    keep_outputs: int | str = "1 GB"
    start_timeout: float = 300.0
    wait_for_capacity: float | str = 0.0
    on_loss: Literal["fail", "replace"] = "fail"
    lost_after: float | None = 60.0
    cluster: bool = True
    rendezvous: bool = True
    debug_wait: float | str = 0.0
    nice: int = 0
    allow_apt: bool = False
    secrets: Sequence[str] = field(default=(), repr=False)
    worker: Worker | None = None
    selection: str | None = None

    _older: ClassVar[Rules] = {
        "ready_timeout": renamed("start_timeout"),
        "retry_on_interruption": unheeded(
            'a call whose machine is taken back fails, and says so; on_loss="replace" has another for the next',
            0,
        ),
        "default_compute_timeout": unheeded(_CALLS_LIMIT, 0),
        "task_run_timeout": unheeded(_CALLS_LIMIT, 0),
        "task_queue_timeout": unheeded("a call waits for its turn for as long as it takes", 0),
        "shutdown_timeout": unheeded("grace= is what ranks have to end; a teardown takes what it takes"),
        "provision_retry_delay": unheeded(_TRIES_AGAIN),
        "max_provision_attempts": unheeded(_TRIES_AGAIN),
        "ssh_retry_interval": unheeded(_TRIES_AGAIN),
        "autoscale_cooldown": unheeded(_IS_FIXED),
        "autoscale_idle_timeout": unheeded(_IS_FIXED),
        "reconcile_tick_interval": unheeded(_IS_FIXED),
        "health_checker": unheeded(_IS_HEALTHY),
        "health_command": unheeded(_IS_HEALTHY),
        "health_interval": unheeded(_IS_HEALTHY),
        "health_failures": unheeded(_IS_HEALTHY),
        "strict_version": unheeded("nodes have this client's own release, always", True, False),
        "logging": unheeded("the variable SKYWARD_LOG has a log written, and says of what", True, False),
    }
    _checks: ClassVar[Checks] = {
        "worker": spec_checks.optional(spec_checks.instance(Worker)),
        "selection": spec_checks.optional(spec_checks.text),
        "fail_fast": spec_checks.flag,
        "grace": spec_checks.seconds(least=0, most=3600),
        "console": spec_checks.console,
        "idle_timeout": spec_checks.seconds(),
        "ttl": spec_checks.optional(spec_checks.seconds()),
        "budget": spec_checks.optional(spec_checks.dollars),
        "log_limit": spec_checks.size,
        "keep_results": spec_checks.duration,
        "keep_outputs": spec_checks.size,
        "start_timeout": spec_checks.seconds(),
        "wait_for_capacity": spec_checks.duration,
        "on_loss": spec_checks.one_of("fail", "replace"),
        "lost_after": spec_checks.optional(spec_checks.seconds()),
        "cluster": spec_checks.unless_none(True, spec_checks.flag),
        "rendezvous": spec_checks.flag,
        "debug_wait": spec_checks.duration,
        "nice": spec_checks.whole(0, 19),
        "allow_apt": spec_checks.flag,
        "secrets": spec_checks.several(_secret),
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
        return super()._today(
            args, {name: value for name, value in given.items() if name not in _PARTS_OF_START}
        )

    def describe(self) -> dict[str, Any]:
        """The options as JSON, without secrets, and without what is the pool's."""
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in ("secrets", "worker", "selection")
        }

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
class Spec(CheckedValue):
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
    nodes: int | Nodes | str | None = None
    vcpus: float | None = None
    memory_gb: float | None = None
    architecture: str | None = None
    region: str | Sequence[str] | None = None
    max_hourly_cost: float | None = None
    allocation: str | None = None
    disk_gb: int | None = None
    image: Image | None = None
    plugins: Sequence[HasHooks] = ()
    ttl: float | None = None

    _in_order: ClassVar[Sequence[str]] = ("provider", "accelerator", "vcpus", "memory_gb", "region")
    _older: ClassVar[Rules] = {
        "cpus": renamed("vcpus"),
        "volumes": refused(NO_VOLUMES, (), []),
    }
    _checks: ClassVar[Checks] = {
        "disk_gb": spec_checks.optional(spec_checks.whole(1, 65536)),
        "image": spec_checks.optional(spec_checks.instance(Image)),
        "plugins": spec_checks.several(spec_checks.anything),
        "ttl": spec_checks.optional(spec_checks.seconds(least=0)),
        "nodes": spec_checks.optional(number_of_nodes),
        "vcpus": spec_checks.optional(spec_checks.threads),
        "memory_gb": spec_checks.optional(spec_checks.amount),
        "architecture": spec_checks.optional(spec_checks.one_of("x86_64", "arm64")),
        "region": spec_checks.optional(spec_checks.one_or_several(spec_checks.text)),
        "max_hourly_cost": spec_checks.optional(spec_checks.amount),
        "allocation": spec_checks.optional(
            spec_checks.one_of_words("on-demand", "spot", "spot-if-available", "cheapest")
        ),
    }

    @property
    def chooses(self) -> list[str]:
        """What is said of machines that only a provider with offers can heed, by its names."""
        names = ("vcpus", "memory_gb", "architecture", "region", "max_hourly_cost", "allocation", "disk_gb")
        return [name for name in names if getattr(self, name) is not None]


@value(kw_only=True, frozen=True)
class PoolSpec(CheckedValue):
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

    name: str
    provider: Any
    nodes: int | Nodes = 1
    accelerator: Any = None
    wish: Wish | None = None
    image: Image = field(default_factory=Image)
    plugins: Sequence[Any] = ()
    worker: Worker = field(default_factory=Worker)
    options: Options = field(default_factory=Options)
    interpreter: Interpreter | None = None

    _checks: ClassVar[Checks] = {
        "name": _pool_name,
        "nodes": number_of_nodes,
        "image": spec_checks.instance(Image),
        "plugins": spec_checks.several(spec_checks.anything),
        "worker": spec_checks.instance(Worker),
        "options": spec_checks.instance(Options),
        "interpreter": spec_checks.optional(spec_checks.instance(Interpreter)),
    }

    @property
    def needs(self) -> Wish:
        """All that each machine has to be."""
        from .accelerators import resolve  # late: most pools take machines as they are
        from .offer import Wish

        return replace(self.wish or Wish(), accelerator=resolve(self.accelerator))

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
        kept = for_keeping(os.environ | self.image.env)
        told = {"rents": True} if isinstance(self.provider, Rents) else {}
        return told | {
            "name": self.name,
            "provider": self.provider.name,
            "nodes": self.most_nodes,  # until the machines are written down
            "accelerator": None if self.accelerator is None else str(self.accelerator),
            "plugins": [plugin.name for plugin in self.plugins],
            "worker": asdict(self.worker),
            "options": self.options.describe(),
            "image": each_text(self.image.describe(), kept),
            "variables": sorted(self.image.env),
            "interpreter": self.interpreter and each_text(self.interpreter.describe(), kept),
        }
