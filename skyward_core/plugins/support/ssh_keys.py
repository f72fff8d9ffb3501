"""Keys by which the nodes of a pool know and admit one another. Made on the client, for one pool."""

from __future__ import annotations

from collections.abc import Sequence

SHORTEST = 20  # characters of a line that is worth blanking


def key_pair() -> tuple[str, str]:
    """A private key as OpenSSH writes it, and its public one."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    key = ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private.decode(), public.decode()


def lines(private: str) -> Sequence[str]:
    """What of a private key must be seen nowhere, as logs have it: line by line."""
    _, _common, *rest = private.splitlines()  # the first says no more than that it is a key
    return [line for line in rest if not line.startswith("-----") and len(line) >= SHORTEST]
