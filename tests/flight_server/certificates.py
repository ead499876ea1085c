"""Short-lived certificates for loopback."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Pair(NamedTuple):
    """PEM certificate and key."""

    cert: bytes
    key: bytes

    def write(self, directory: Path, name: str = "server") -> tuple[Path, Path]:
        """Writes both files, each replaced atomically as renewals do, and returns their paths."""
        paths = directory / f"{name}.pem", directory / f"{name}.key"
        for path, data in zip(paths, self, strict=True):
            fresh = path.with_suffix(".new")
            fresh.write_bytes(data)
            fresh.replace(path)
        return paths


def make(name: str) -> Pair:
    """A self-signed certificate for localhost and 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(signed.public_bytes(serialization.Encoding.PEM), private)


def name_of(der: bytes) -> str:
    """Common name of a DER certificate."""
    found = x509.load_der_x509_certificate(der).subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    return found if isinstance(found, str) else found.decode()
