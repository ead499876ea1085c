"""The certificate that a networked server makes when none is given, so that no token travels in clear."""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from flight_server.core.config import Settings
from store.model.errors import InvalidArgument

VALID_DAYS: Final = 825
RENEW_DAYS: Final = 30  # before it expires; checked when the server starts


def with_tls(settings: Settings) -> Settings:
    """Adds a self-made certificate to the settings of a networked server that has none.

    The certificate and its key lie in the directory `<db>.tls`; the next start uses them again, so that clients may
    keep `cert.pem` as their `--tls-roots`.

    Raises:
        InvalidArgument: The directory cannot be written.
    """
    if settings.is_loopback or settings.insecure or settings.tls_cert is not None:
        return settings
    directory = settings.db.with_name(settings.db.name + ".tls")
    cert, key = directory / "cert.pem", directory / "key.pem"
    try:
        if not _is_good(cert, key):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            certificate, private = _make(settings.host)
            _write(key, private)
            _write(cert, certificate)
    except OSError as error:
        raise InvalidArgument(
            f"a certificate of the server's own cannot be written: {error.strerror}",
            hint="give --tls-cert, --tls-key",
        ) from None
    return replace(settings, tls_cert=cert, tls_key=key)


def _is_good(cert: Path, key: Path) -> bool:
    """True when the pair exists and stays valid for RENEW_DAYS."""
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(cert.read_bytes())
        return key.exists() and certificate.not_valid_after_utc > datetime.now(UTC) + timedelta(days=RENEW_DAYS)
    except (OSError, ValueError):
        return False


def _make(host: str) -> tuple[bytes, bytes]:
    """Makes a self-signed certificate for the names of this machine, and its key; PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    own = socket.gethostname()
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in dict.fromkeys(("localhost", own))]
    addresses = {ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")}
    try:
        given = ipaddress.ip_address(host.strip("[]"))
        addresses |= set() if given.is_unspecified else {given}
    except ValueError:
        names.append(x509.DNSName(host))
    names += [x509.IPAddress(address) for address in sorted(addresses, key=str)]
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, own[:64])])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return signed.public_bytes(serialization.Encoding.PEM), private


def _write(path: Path, data: bytes) -> None:
    """Writes a file that only its owner can read, atomically."""
    draft = path.with_suffix(".new")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    draft.replace(path)
