"""Plugin ``joblib``: ``joblib.Parallel`` runs on the pool while the pool is up."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from skyward_core.model.errors import UsageError
from skyward_core.plugins.plugin import Plugin, requirement, with_pip

if TYPE_CHECKING:
    from skyward_core.model.specs import Image, PoolSpec


@dataclass(frozen=True)
class Joblib(Plugin):
    """Backend that runs ``joblib.Parallel`` calls of the client on the pool. Only for the thread that opened the pool.

    Args:
        n_jobs: Number of concurrent tasks of a ``Parallel`` without ``n_jobs``. None for the number of tasks that the
            pool runs at the same time.
        version: "latest", an exact version, or constraints such as ">=1.4".

    Attributes:
        package: Name of the package to install.

    Raises:
        UsageError: If ``n_jobs`` is less than one.
    """

    name: ClassVar[str] = "joblib"
    help: ClassVar[str] = "joblib.Parallel runs on the pool"
    place: ClassVar[int] = 8
    package: ClassVar[str] = "joblib"
    n_jobs: int | None = field(
        default=None, metadata={"help": "number of concurrent tasks of a Parallel without n_jobs"}
    )
    version: str = field(default="latest", metadata={"help": "version of joblib"})

    def __post_init__(self) -> None:
        if self.n_jobs is not None and self.n_jobs < 1:
            raise UsageError(f"n_jobs must be 1 or more, got {self.n_jobs}. Use None for all slots of the pool.")

    def transform(self, image: Image, pool_spec: PoolSpec) -> Image:
        return with_pip(image, [requirement(self.package, self.version)])

    def around_client(self, pool: Any) -> AbstractContextManager[object]:
        from joblib import parallel_config

        from skyward_core.plugins.joblib_backend import PoolBackend

        slots = pool.pool.view.world_size * pool.spec.concurrency
        context: AbstractContextManager[object] = parallel_config(
            backend=PoolBackend(pool=pool, slots=slots), n_jobs=self.n_jobs or slots
        )
        return context


PLUGIN = Joblib
