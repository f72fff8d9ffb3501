"""scikit-learn: what takes ``n_jobs`` runs on the pool while it is up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from skyward_core.plugins.built_in.joblib import Joblib


@dataclass(frozen=True)
class Sklearn(Joblib):
    """scikit-learn on the pool: what takes ``n_jobs`` (searches, forests, cross-validation) runs there.

    Args:
        n_jobs: as for ``joblib``.
        version: of scikit-learn.
    """

    name: ClassVar[str] = "sklearn"
    help: ClassVar[str] = "scikit-learn runs on the pool"
    place: ClassVar[int] = 9
    package: ClassVar[str] = "scikit-learn"
    conflicts: ClassVar[tuple[str, ...]] = ("joblib",)
    version: str = field(default="latest", metadata={"help": "of scikit-learn"})


PLUGIN = Sklearn
