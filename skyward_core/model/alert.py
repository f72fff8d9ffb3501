"""Alert: one problem of a run in progress, found by ``views.alert_rules``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from skyward_core.model.outcomes import AlertKind


@dataclass(frozen=True, slots=True)
class Alert:
    """One problem of a run.

    Attributes:
        rank: Affected rank, or None for a machine.
        node: Affected node, or None for a rank.
        gpu: Affected GPU of the node, or None for the node itself.
        name: Name of the metric, or "".
        since: Unix time when the problem began.
        words: Description, without the subject and the time.
    """

    kind: AlertKind
    rank: int | None
    node: int | None
    gpu: int | None
    name: str
    since: float
    words: str

    @property
    def who(self) -> str:
        """Subject of the alert: ``rank 5``, ``n1`` or ``n1 GPU 4``."""
        if self.rank is not None:
            return f"rank {self.rank}"
        return f"n{self.node}" if self.gpu is None else f"n{self.node} GPU {self.gpu}"

    @property
    def key(self) -> tuple[object, ...]:
        """Identity of the problem, independent of its current values."""
        return (self.kind, self.rank, self.node, self.gpu, self.name)

    def to_json(self) -> dict[str, Any]:
        """Return all attributes as JSON types."""
        return asdict(self)
