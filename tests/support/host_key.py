"""Unknown host key for dialogs."""

from __future__ import annotations

from pathlib import Path

import asyncssh

from skyward_core.transport.ssh import known_hosts

FILE = Path("/home/me/.local/state/skyward/known_hosts")


PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"


def shown(host: str = "gpu1", port: int = 22) -> known_hosts.ServerKey:
    return known_hosts.ServerKey(host, "10.0.0.5", port, asyncssh.import_public_key(PUBLIC), FILE)
