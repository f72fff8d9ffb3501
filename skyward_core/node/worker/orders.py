"""What an agent tells a worker by the variables that it starts it with. User code finds none of them."""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...wire.node_frame_types import Started


class Orders:
    """Start options of one worker, removed from its environment variables."""

    # (Workers wait for this; a named tuple takes a millisecond to make.)
    # capacity: how many calls it runs at once
    # patience: seconds in which it looks for another agent where its own is gone
    # grace: seconds that it has for leaving its plugins' contexts
    # rendezvous: whether broadcasts have the variables that torchrun sets
    # debug_wait: seconds that it waits at a breakpoint for somebody who debugs it
    # known: what an agent that did not start it has to be told
    # sources: folders below which modules may be edited
    # folders: the working folder, here and on the client
    # hears_notices: whether it may be told that machines are taken back

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self.known: Started = {}
        if (names := environ.pop("SKYWARD_VARIABLES", None)) is not None:
            self.known["env"] = {name: environ[name] for name in names.split(",") if name in environ}
        self.capacity = int(environ.pop("SKYWARD_CAPACITY", "1"))
        self.patience = float(environ.pop("SKYWARD_PATIENCE", "600"))
        self.grace = float(environ.pop("SKYWARD_GRACE", "5"))
        self.rendezvous = environ.pop("SKYWARD_RENDEZVOUS", "1") != "0"
        self.debug_wait = float(environ.pop("SKYWARD_DEBUG_WAIT", "0"))
        self.sources, self.folders = json.loads(environ.pop("SKYWARD_FOLDERS", '[[""], []]'))
        self.hears_notices = bool(environ.pop("SKYWARD_NOTICES", ""))
