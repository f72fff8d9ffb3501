"""Certificates of one pool, as one client makes them: an authority that lives in this process only.

Whoever shows a certificate of it was given one by us over SSH; only the holder's name is read from certificates, so
they hold no addresses, and no dates that a host's wrong clock could stumble over.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from skyward_core.util.light_dataclass import Value, value

if TYPE_CHECKING:
    from skyward_core.protocol import frame_types

BEGINNING = datetime(2000, 1, 1)
NO_END = datetime(9999, 12, 31, 23, 59, 59)


@value
class TlsCredentials(Value):
    """What a node, or the client, shows to the others, and checks them by; all PEM.

    Attributes:
        authority: the certificate that all others are signed by.
        certificate: the holder's own.
        key: its private key.
    """

    authority: str
    certificate: str
    key: str

    def to_json(self) -> frame_types.CredentialKeys:
        return {"authority": self.authority, "certificate": self.certificate, "key": self.key}

    def __repr__(self) -> str:
        return "Papers(...)"


class Authority:
    """Signs the certificates of one pool's nodes and of its client; its key is never written anywhere.

    Args:
        name: What the authority is called.
    """

    def __init__(self, name: str) -> None:
        self._name = _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._sign(self._name, self._key.public_key(), is_authority=True)

    def issue(self, holder: str) -> TlsCredentials:
        """A new key for a node (:func:`node_name`) or the client (``tls_stream.CLIENT``), certified."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(_name(holder), key.public_key(), is_authority=False)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return TlsCredentials(_pem(self._certificate), _pem(certificate), private.decode())

    def _sign(self, name: x509.Name, key: ec.EllipticCurvePublicKey, *, is_authority: bool) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(BEGINNING)
            .not_valid_after(NO_END)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        return builder.sign(self._key, hashes.SHA256())


def node_name(node: int) -> str:
    """What a node is called in its certificate."""
    return f"node {node}"


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
