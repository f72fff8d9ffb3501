"""What a node has of this library comes in two files: the first with what it starts with, the rest when nobody waits
any more. Whoever imports of the rest before that waits here.

Only scripts do that whose functions, or the modules beside them, name a provider or a pool.
"""

# A rank has no pathlib.
# ruff: noqa: PTH110, PTH120

from __future__ import annotations

import os
import sys

from ..wire.node_paths import rest_of
from .bundle_importer import import_once

TYPE_CHECKING = False  # typing's would be imported for it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

PACKAGE = "skyward_core"
PATIENCE = 60.0  # seconds for which an import waits: on a slow line it takes that long
PAUSE = 0.05  # seconds between looks


def have_rest(path: str) -> None:
    """Have modules that the first file lacks found in the rest.

    Args:
        path: where the package lies, in the first file.
    """
    bundle = os.path.dirname(path)
    import_once(bundle)
    # At the end: it is asked for what nobody else has.
    sys.meta_path.append(_RestFinder(rest_of(bundle)))


class _RestFinder:
    def __init__(self, rest: str) -> None:
        self._rest = rest
        self._user = os.geteuid()
        self._until = 0.0  # when nobody waits any more: once for all imports

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(PACKAGE + "."):
            return None
        from importlib.machinery import PathFinder

        self._wait(fullname)
        above = fullname.rpartition(".")[0].replace(".", "/")
        return PathFinder.find_spec(fullname, [f"{self._rest}/{above}"])

    def _wait(self, fullname: str) -> None:
        import time

        self._until = self._until or time.monotonic() + PATIENCE
        while why := self._why_not():
            if time.monotonic() > self._until or os.geteuid() != self._user:
                raise ModuleNotFoundError(f"{fullname} is not on this node: {why}", name=fullname)
            time.sleep(PAUSE)

    def _why_not(self) -> str:
        """Why nothing can be imported from it yet, or "": it is there, and nobody else can have put it there."""
        if (user := os.geteuid()) != self._user:
            return (
                f"this process has become user {user}, and the library is readable to user {self._user} alone: import "
                "what you need of it before you change the user"
            )
        if not os.path.exists(self._rest):
            return (
                "the client that started the pool has left, or was cut off, before it had sent this part of the "
                "library. The next pool that is made on this host sends it"
            )
        from .boot.host import doubt

        return doubt(self._rest)
