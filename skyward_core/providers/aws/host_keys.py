"""Keys that are made here: the one that hosts of a pool show, and the one that this client logs in with."""

from __future__ import annotations

from skyward_core.util.light_dataclass import Value, value


@value
class KeyPair(Value):
    """An ed25519 key as OpenSSH writes it.

    Attributes:
        private: the text of its file.
        public: the line for others.
    """

    private: str
    public: str

    def __repr__(self) -> str:
        return f"KeyPair({self.public!r})"


def make_key_pair(comment: str) -> KeyPair:
    """A new key.

    Args:
        comment: what it is for, in a word.
    """
    from skyward_core.transport.ssh.asyncssh_import import asyncssh

    key = asyncssh.generate_private_key("ssh-ed25519", comment=comment)
    return KeyPair(key.export_private_key().decode(), key.export_public_key().decode().strip())
