"""Certificates of one pool, from an authority that exists only in this client's process.

Every holder of a certificate received it from the client over SSH. Only the holder's name is read from a certificate.
Certificates therefore contain no addresses, and no dates that a wrong clock could make invalid.
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
    """TLS credentials of a node or the client, as PEM.

    Attributes:
        authority: Certificate of the authority that signed all others.
        certificate: The holder's certificate.
        key: The holder's private key.
    """

    authority: str
    certificate: str
    key: str

    def to_json(self) -> frame_types.CredentialKeys:
        return {"authority": self.authority, "certificate": self.certificate, "key": self.key}

    def __repr__(self) -> str:
        return "TlsCredentials(...)"


class Authority:
    """Certificate authority of one pool's nodes and client. Its key is never stored.

    Args:
        name: Name of the authority.
    """

    def __init__(self, name: str) -> None:
        self._name = _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._sign(self._name, self._key.public_key(), is_authority=True)

    def issue(self, holder: str) -> TlsCredentials:
        """Return a new key and certificate for a node (:func:`node_name`) or the client."""
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
    """Return a node's name in its certificate."""
    return f"node {node}"


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
