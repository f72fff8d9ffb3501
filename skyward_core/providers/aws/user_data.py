"""What a machine is told for its first boot, as cloud-init takes it. Who can read it may: it holds one secret, the key
that the host shows until the first login."""

from __future__ import annotations

import json
from typing import Any

from .host_keys import KeyPair


def user_data(host_key: KeyPair, deadman: int) -> str:
    """The first boot's cloud-config. JSON is YAML, too.

    The host's key is in its place before an SSH server starts. The deadman is armed before anything is installed:
    from then on the machine ends itself unless an agent puts that off.

    Args:
        host_key: what the host's SSH server shows.
        deadman: minutes.
    """
    config: dict[str, Any] = {
        "ssh_deletekeys": True,
        "ssh_genkeytypes": [],
        "ssh_keys": {"ed25519_private": host_key.private, "ed25519_public": host_key.public},
        "ssh_pwauth": False,
        "package_update": False,
        "package_upgrade": False,
        "runcmd": [["shutdown", "-P", f"+{deadman}"]],
    }
    return f"#cloud-config\n{json.dumps(config, indent=1)}\n"
