"""Another host key for a machine, made on it at the first login: whoever may read the instance's user-data can read the
one that it boots with.

Both keys are believed from before the machine takes the new one until it shows it: whoever is cut off in between lets
the next one in, who goes on. From then on the first key is refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from ...model.errors import PoolError, SkywardError, what_of
from ...store.whole_file import write_whole
from ...wire.safe_text import field as safe

FILE = "/etc/ssh/ssh_host_ed25519_key"
NEXT = "/etc/ssh/skyward_next_key"
# Run by root; what is made is kept until it is in its place, so that who comes again finds the same.
MAKE = f"test -e {NEXT}.pub || {{ rm -f {NEXT} && ssh-keygen -q -t ed25519 -N '' -C '' -f {NEXT}; }} && cat {NEXT}.pub"
TAKE = (
    f"{{ test ! -e {NEXT} || mv {NEXT} {FILE}; }} && mv {NEXT}.pub {FILE}.pub && "
    "{ systemctl restart ssh || systemctl restart sshd; }"
)
PATIENCE = 20.0  # seconds until the machine's SSH server shows it
PAUSE = 0.1

Root = Callable[[str], Awaitable[str]]
"""Runs a line of shell as root, and gives what it prints."""
Shown = Callable[[], Awaitable[str]]
"""The key that the machine shows now, as its type and its base64 text."""


class OwnHostKey:
    """The file that says which keys of one machine are believed.

    Args:
        path: of the machine's own file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def keys(self) -> list[str]:
        """Those that are believed, by type and text; none before the first login."""
        try:
            lines = self.path.read_text(encoding="ascii").splitlines()
        except FileNotFoundError:
            return []
        return [line.removeprefix("* ") for line in lines if line]

    def believe(self, *keys: str) -> None:
        """These, and no other.

        Raises:
            OSError: it cannot be written down.
        """
        write_whole(self.path, "".join(f"* {key}\n" for key in keys).encode())

    async def have(self, seen: str, as_root: Root, shown: Shown) -> None:
        """Have the machine show a key of its own.

        Args:
            seen: the key that it showed at this login.

        Raises:
            PoolError: it does not; says why.
            OSError: it cannot be written down.
        """
        before = self.keys
        if len(before) == 1:
            return
        if before and before[-1] == seen:  # it has taken it, and who saw to that went before seeing so
            self.believe(seen)
            return
        try:
            line = (await as_root(MAKE)).strip().splitlines()
        except SkywardError as error:
            raise PoolError(f"it could make itself no host key of its own: {what_of(error)}") from error
        words = line[-1].split() if line else []
        if len(words) < 2 or words[0] != "ssh-ed25519":
            raise PoolError(f"it made itself no host key, but says {safe(' '.join(line))!r}")
        new = " ".join(words[:2])
        self.believe(seen, new)
        await as_root(TAKE)
        deadline = time.monotonic() + PATIENCE
        while await shown() != new:
            if time.monotonic() > deadline:
                raise PoolError("its SSH server goes on showing the key that it booted with")
            await asyncio.sleep(PAUSE)
        self.believe(new)
