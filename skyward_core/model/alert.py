"""An alert: one problem of a run that is in progress. ``views.alert_rules`` finds them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from skyward_core.model.outcomes import AlertKind


@dataclass(frozen=True, slots=True)
class Alert:
    """One thing that is amiss.

    Attributes:
        rank: whose it is, or None: a machine's.
        node: whose it is, or None: a rank's.
        gpu: of that node, or None: the node's own.
        name: of the number or figure, or "".
        since: Unix time since when.
        words: what it is, without who and since when.
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
        """``rank 5``, ``n1``, ``n1 GPU 4``."""
        if self.rank is not None:
            return f"rank {self.rank}"
        return f"n{self.node}" if self.gpu is None else f"n{self.node} GPU {self.gpu}"

    @property
    def key(self) -> tuple[object, ...]:
        """The same for the same trouble, whatever its figures are now."""
        return (self.kind, self.rank, self.node, self.gpu, self.name)

    def to_json(self) -> dict[str, Any]:
        """All that it says, as JSON's types."""
        return asdict(self)
