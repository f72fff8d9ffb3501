"""What a person asks for: pool, image, worker, options. Values only; nothing here does anything."""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from .agent.redact import each_text, without_credentials

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?")


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, defer_build=True)


class PipIndex(_Spec):
    """An extra package index; with ``packages`` it serves only those."""

    url: str
    packages: tuple[str, ...] = ()


class Image(_Spec):
    """What a node's environment holds.

    Args:
        python: version such as "3.12"; None for the client's own.
        pip: requirements, as pip takes them.
        pip_indexes: extra package indexes.
        apt: Debian packages.
        env: environment variables of the ranks.
        setup: shell commands, run once per environment.
        workdir: folder that travels to the nodes, and that ranks work in; None for the current one, or the
            script's own where the script lies elsewhere.
        includes: glob patterns of files to take along although ignored.
        excludes: glob patterns of files to leave out.
    """

    python: str | None = None
    pip: tuple[str, ...] = ()
    pip_indexes: tuple[PipIndex, ...] = ()
    apt: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    setup: tuple[str, ...] = ()
    workdir: str | None = None
    includes: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()


class Worker(_Spec):
    """How a node runs what it is given.

    Args:
        concurrency: tasks (``>>``, gather) that one rank runs at the same time; broadcasts are one at a time.
        executor: "process" runs each in an interpreter of its own, on its main thread;
            "thread" runs them as threads of the rank's one interpreter.
        ranks_per_node: ranks of the gang on each node; "gpu" for one per GPU.
    """

    concurrency: Annotated[int, Field(ge=1, le=256)] = 1
    executor: Literal["process", "thread"] = "process"
    ranks_per_node: Annotated[int, Field(ge=1, le=64)] | Literal["gpu"] = 1


class Options(_Spec):
    """How a pool behaves.

    Args:
        fail_fast: stop the other ranks at the first real failure.
        grace: seconds between the polite signal (SIGTERM) and the final one (SIGKILL).
        console: print the ranks' logs as they come, each line with its rank.
        idle_timeout: seconds without a client and without a run after which the pool ends itself.
        ttl: seconds after which the pool ends itself unless a run is active; None for no limit.
        start_timeout: seconds that the nodes may take to come up.
        on_loss: what follows the loss of a host: "fail" degrades the pool; "replace" asks for another
            one, for up to ``start_timeout`` seconds, in which broadcasts wait.
        cluster: whether nodes may reach each other; False makes standalone workers: ranks know no head address and
            no peers, one that dies takes no other with it (but see ``fail_fast``), all data comes from the client, and
            plugins that need peers are refused.
    """

    fail_fast: bool = True
    grace: Annotated[float, Field(ge=0, le=3600)] = 5.0
    console: bool = True
    idle_timeout: Annotated[float, Field(gt=0)] = 600.0
    ttl: Annotated[float, Field(gt=0)] | None = None
    start_timeout: Annotated[float, Field(gt=0)] = 300.0
    on_loss: Literal["fail", "replace"] = "fail"
    cluster: bool = True


class PoolSpec(_Spec):
    """One pool, whole: what :class:`skyward_core.Compute` was asked for.

    ``provider`` and ``plugins`` are the objects themselves; :meth:`describe` gives what can be written down.
    """

    name: str
    provider: Any
    nodes: Annotated[int, Field(ge=1, le=1024)] = 1
    accelerator: Any = None
    image: Image = Field(default_factory=Image)
    plugins: tuple[Any, ...] = ()
    worker: Worker = Field(default_factory=Worker)
    options: Options = Field(default_factory=Options)

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if not NAME.fullmatch(value):
            raise ValueError(
                f"{value!r} is no pool name: use 1 to 48 lower-case letters, digits and hyphens, "
                "with a letter or digit at both ends"
            )
        return value

    @property
    def ranks_per_node(self) -> int:
        """Ranks on each node (one where it is "gpu" and the nodes have not told their GPUs yet)."""
        return self.worker.ranks_per_node if isinstance(self.worker.ranks_per_node, int) else 1

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def may_have_peers(self) -> bool:
        """Whether there is, or as far as is known may be, more than one rank."""
        return self.world_size > 1 or self.worker.ranks_per_node == "gpu"

    def describe(self) -> dict[str, Any]:
        """The spec as JSON, without secrets: no variables, and no credentials in URLs."""
        image = self.image.model_dump(exclude={"env"})
        return {
            "name": self.name,
            "provider": self.provider.name,
            "nodes": self.nodes,
            "accelerator": None if self.accelerator is None else str(self.accelerator),
            "plugins": [plugin.name for plugin in self.plugins],
            "worker": self.worker.model_dump(),
            "options": self.options.model_dump(),
            "image": each_text(image, without_credentials),
            "variables": sorted(self.image.env),
        }


def _build(*models: type[BaseModel]) -> None:
    """Make the models' validators without pydantic's search for plugins, which reads the metadata of everything that
    is installed. Other people's models find theirs as ever."""
    name = "pydantic.plugin._loader"
    if known := name in sys.modules:
        stand_in = sys.modules[name]
    else:
        stand_in = sys.modules[name] = ModuleType(name)
        stand_in.__dict__["get_plugins"] = tuple
    try:
        for model in models:
            model.model_rebuild()
    finally:
        if not known:
            del sys.modules[name]


_build(PipIndex, Image, Worker, Options, PoolSpec)
