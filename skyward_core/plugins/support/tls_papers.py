"""Certificates for a server that a plugin brings up: who has no key of the pool is not let in. Made on the client."""

from __future__ import annotations

from datetime import datetime

BEGINNING, NO_END = datetime(2000, 1, 1), datetime(9999, 12, 31, 23, 59, 59)  # whatever a host's clock says


def papers(name: str) -> tuple[str, str, str]:
    """An authority that signs once and is forgotten: its certificate, the one that it signed, and that one's key; PEM.

    Args:
        name: what the authority is called.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    authority, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))

    def signed(holder: str, public: ec.EllipticCurvePublicKey, *, is_authority: bool) -> str:
        builder = x509.CertificateBuilder(named(name), named(holder), public, x509.random_serial_number())
        builder = builder.not_valid_before(BEGINNING).not_valid_after(NO_END)
        builder = builder.add_extension(
            x509.BasicConstraints(ca=is_authority, path_length=None), critical=True
        )
        made = builder.sign(authority, hashes.SHA256())
        return made.public_bytes(serialization.Encoding.PEM).decode()

    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return (
        signed(name, authority.public_key(), is_authority=True),
        signed(f"{name}'s own", key.public_key(), is_authority=False),
        private.decode(),
    )
