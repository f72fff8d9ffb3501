"""What an agent tells a worker by the variables that it starts it with. User code finds none of them."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...wire.node_frame_types import Started


class Orders:
    """One worker's. (To make a dataclass or a named tuple takes each worker a millisecond.)

    Attributes:
        capacity: how many calls it runs at once.
        patience: seconds in which it looks for another agent where its own is gone.
        grace: seconds that it has for leaving its plugins' contexts.
        rendezvous: whether broadcasts have the variables that torchrun sets.
        known: what an agent that did not start it has to be told.
        sources: folders below which modules may be edited.
        folders: the working folder, here and on the client.
    """

    __slots__ = ("capacity", "folders", "grace", "known", "patience", "rendezvous", "sources")

    def __init__(
        self,
        capacity: int,
        patience: float,
        grace: float,
        rendezvous: bool,
        known: Started,
        sources: list[str],
        folders: list[str],
    ) -> None:
        self.capacity = capacity
        self.patience = patience
        self.grace = grace
        self.rendezvous = rendezvous
        self.known = known
        self.sources = sources
        self.folders = folders


def taken_from(environ: MutableMapping[str, str]) -> Orders:
    """Take them out of a process's variables."""
    known: Started = {}
    if (names := environ.pop("SKYWARD_VARIABLES", None)) is not None:
        known["env"] = {name: environ[name] for name in names.split(",") if name in environ}
    return Orders(
        capacity=int(environ.pop("SKYWARD_CAPACITY", "1")),
        patience=float(environ.pop("SKYWARD_PATIENCE", "600")),
        grace=float(environ.pop("SKYWARD_GRACE", "5")),
        rendezvous=environ.pop("SKYWARD_RENDEZVOUS", "1") != "0",
        known=known,
        sources=environ.pop("SKYWARD_SOURCES", "").split(":"),
        folders=environ.pop("SKYWARD_FOLDERS", "").split("\n"),
    )
