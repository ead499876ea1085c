"""The certificate that a networked server makes itself."""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from flight_server.config import Settings
from flight_server.process import certificates
from flight_server.process.certificates import with_tls
from flight_server.process.listener import tls_options
from store.errors import InvalidArgument


def networked(directory: Path, **more: object) -> Settings:
    return replace(Settings(db=directory / "s.duckdb", host="0.0.0.0", auth=Path("tokens.toml")), **more)


def test_a_networked_server_without_a_certificate_makes_one_and_keeps_it(tmp_path):
    first = with_tls(networked(tmp_path))
    assert first.tls_cert == tmp_path / "s.duckdb.tls/cert.pem"
    assert tls_options(first)["tls_certificates"]
    ssl.create_default_context(cafile=str(first.tls_cert))
    assert first.tls_key.stat().st_mode & 0o777 == 0o600
    made = first.tls_cert.read_bytes()
    assert with_tls(networked(tmp_path)) == first and first.tls_cert.read_bytes() == made
    names = x509.load_pem_x509_certificate(made).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "localhost" in names.get_values_for_type(x509.DNSName)


def test_one_that_ends_soon_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(certificates, "VALID_DAYS", certificates.RENEW_DAYS - 1)
    old = with_tls(networked(tmp_path)).tls_cert.read_bytes()
    monkeypatch.undo()
    assert with_tls(networked(tmp_path)).tls_cert.read_bytes() != old


@pytest.mark.parametrize(
    "more", [{"host": "localhost"}, {"insecure": True}, {"tls_cert": Path("c"), "tls_key": Path("k")}]
)
def test_others_are_left_as_they_are(tmp_path, more):
    settings = networked(tmp_path, **more)
    assert with_tls(settings) is settings
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "s.duckdb.tls").write_text("a file")
    with pytest.raises(InvalidArgument, match="cannot be written"):
        with_tls(networked(tmp_path))
