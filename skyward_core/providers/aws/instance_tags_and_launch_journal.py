"""Tags of a pool's EC2 resources, and the pool's folder on the client, which has the keys and the journal of launches.

Each request to EC2 is recorded before it is sent, and each answer before it is used. A later client therefore knows
which resources a killed client may have created. The tags tell any client to which pool a resource belongs.
"""

from __future__ import annotations

import calendar
import getpass
import json
import os
import time
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from skyward_core.model.errors import convert_errors
from skyward_core.store.ledger import ledger_id
from skyward_core.store.pool_folder import PoolKeyFolder
from skyward_core.store.state_folder import state_home
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.safe_file_access import write_atomic

POOL, TOKEN, LEDGER, EXPIRES, OWNER, NODE, HOURLY, PURCHASE = (
    f"skyward:{name}" for name in ("pool", "token", "ledger", "expires", "owner", "node", "hourly", "purchase")
)
DATE_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def pool_tags(
    pool: str,
    token: str,
    *,
    at: float = 0.0,
    ttl: float | None = None,
    node: int | None = None,
    hourly: float | None = None,
) -> dict[str, str]:
    """Return the tags of a pool's resources.

    Args:
        pool: Name of the pool.
        token: Token of the pool.
        at: Unix time of the first request.
        ttl: Seconds from ``at`` after which the resource should no longer exist, unless postponed; None for free
            resources.
        node: Index of the node that gets a replacement machine.
        hourly: Dollars per machine and hour at the time of the launch.
    """
    tags = {"Name": f"skyward-{pool}", POOL: pool, TOKEN: token} | _owner_tags()
    if ttl is not None:
        tags[EXPIRES] = format_date(at + ttl)
    if node is not None:
        tags[NODE] = str(node)
    if hourly is not None:
        tags[HOURLY] = f"{hourly:.4f}"
    return tags


def _owner_tags() -> dict[str, str]:
    """Return the tags of this client's ledger and its user; the user of a container may have no name."""
    try:
        owner = getpass.getuser()
    except (KeyError, OSError):
        owner = str(os.getuid())
    return {LEDGER: ledger_id("aws"), OWNER: owner}


def tagged_node(marks: Mapping[str, str]) -> int | None:
    """Return the node index of a replacement machine; None if the tags have no valid index, since any account user can
    edit tags.
    """
    text = marks.get(NODE, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else None


def format_date(at: float) -> str:
    """Format a Unix time for a tag."""
    return time.strftime(DATE_FORMAT, time.gmtime(at))


def purchase_tags(token: str) -> dict[str, str]:
    """Return the tags of purchased capacity, which belongs to no pool."""
    return {"Name": "skyward", PURCHASE: token} | _owner_tags()


def tagged_expiry(marks: Mapping[str, str]) -> float | None:
    """Return the Unix time after which a resource should no longer exist, according to its tags; None if the tags
    contain no time.
    """
    try:
        return float(calendar.timegm(time.strptime(marks.get(EXPIRES, ""), DATE_FORMAT)))
    except ValueError:
        return None


def tagged_hourly(marks: Mapping[str, str]) -> float | None:
    """Return the dollars per hour of a tagged machine; None if the tags have no valid price."""
    try:
        found = float(marks.get(HOURLY, ""))
    except ValueError:
        return None
    return found if 0 <= found < 1e6 else None


def tag_specifications(kinds: Sequence[str], tags: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return tags in the format of calls that create resources of some types."""
    listed = [{"Key": key, "Value": value} for key, value in tags.items()]
    return [{"ResourceType": kind, "Tags": listed} for kind in kinds]


def parse_tags(tagged: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags in EC2's description of a resource."""
    return {each["Key"]: each["Value"] for each in tagged.get("Tags", ())}


class LaunchJournal(PoolKeyFolder):
    """Journal and keys of one pool on EC2."""

    provider = "aws"

    @classmethod
    def remove_folders(cls, names: Container[str]) -> None:
        """Remove the folders of pools without any remaining resources.

        Args:
            names: Folder names, derived from tags; only existing folders are removed.

        Raises:
            OSError: If a folder cannot be removed.
        """
        for path in (state_home() / cls.provider).glob("*.*"):
            if path.name in names and path.is_dir():
                cls(*path.name.rsplit(".", 1)).remove()

    def make_keys(self) -> tuple[KeyPair, KeyPair]:
        """Create the login key and the pool's host key, unless they exist.

        Returns:
            The login key and the host key.

        Raises:
            PoolError: If the keys cannot be written.
        """
        with convert_errors(f"cannot write the keys of pool {self.pool} to {self.path}"):
            self.path.mkdir(parents=True, mode=0o700, exist_ok=True)
            login = self._make_key(self.login_key, f"skyward-{self.pool}")
            host = self._make_key(self.path / "host_key", f"host-of-{self.pool}")
            # The host pattern is "*", because all machines of the pool boot with this key. The file contains no other
            # key.
            write_atomic(self.known_hosts, f"* {' '.join(host.public.split()[:2])}\n".encode())
        return login, host

    def _make_key(self, path: Path, comment: str) -> KeyPair:
        public = path.with_name(f"{path.name}.pub")
        if not (path.exists() and public.exists()):
            made = make_key_pair(comment)
            write_atomic(path, made.private.encode())
            write_atomic(public, f"{made.public}\n".encode())
        return KeyPair(path.read_text(encoding="ascii"), public.read_text(encoding="ascii").strip())

    def add(self, what: str, **facts: Any) -> None:
        """Append a request or answer to the journal and flush it to disk.

        Raises:
            PoolError: If the journal cannot be written.
        """
        with convert_errors(f"cannot record the requests of pool {self.pool} in {self._journal_path}"):
            self.path.mkdir(parents=True, mode=0o700, exist_ok=True)
            # The line starts with a newline, because a full disk may have cut off the previous line.
            line = f"\n{json.dumps({'what': what} | facts)}\n"
            with open(os.open(self._journal_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())

    def notes(self) -> list[dict[str, Any]]:
        """Return the entries in order. Skip a line that a killed client wrote only in part.

        Raises:
            PoolError: If the journal cannot be read.
        """
        lines: list[str] = []
        with convert_errors(f"cannot read the recorded requests of pool {self.pool}"), suppress(FileNotFoundError):
            lines = self._journal_path.read_text(encoding="utf-8").splitlines()
        found = []
        for line in lines:
            with suppress(ValueError):
                found.append(json.loads(line))
        return found

    @property
    def _journal_path(self) -> Path:
        return self.path / "asked.jsonl"


@value
class KeyPair(Value):
    """Ed25519 key pair in OpenSSH format.

    Attributes:
        private: Text of the private key file.
        public: Line of the public key.
    """

    private: str
    public: str

    def __repr__(self) -> str:
        return f"KeyPair({self.public!r})"


def make_key_pair(comment: str) -> KeyPair:
    """Generate a key pair.

    Args:
        comment: Comment in the public key.
    """
    from skyward_core.transport.ssh.asyncssh_patches import asyncssh

    key = asyncssh.generate_private_key("ssh-ed25519", comment=comment)
    return KeyPair(key.export_private_key().decode(), key.export_public_key().decode().strip())


def machine_folder(pool: str, token: str, node: int, name: str) -> str:
    """Return the name of a node's folder on a machine.

    Args:
        name: EC2's id of the machine.
    """
    return f"{pool}.{token[:8]}.{node}-{name[-6:]}"
