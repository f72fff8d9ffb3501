"""Plugin ``sklearn``: scikit-learn estimators with ``n_jobs`` run on the pool while the pool is up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from skyward_core.plugins.built_in.joblib import Joblib


@dataclass(frozen=True)
class Sklearn(Joblib):
    """scikit-learn on the pool: estimators and functions with ``n_jobs`` (searches, forests, cross-validation) run on
    the pool's ranks.

    Args:
        n_jobs: Same as for ``joblib``.
        version: Version of scikit-learn.
    """

    name: ClassVar[str] = "sklearn"
    help: ClassVar[str] = "scikit-learn runs on the pool"
    place: ClassVar[int] = 9
    package: ClassVar[str] = "scikit-learn"
    conflicts: ClassVar[tuple[str, ...]] = ("joblib",)
    version: str = field(default="latest", metadata={"help": "version of scikit-learn"})


PLUGIN = Sklearn
