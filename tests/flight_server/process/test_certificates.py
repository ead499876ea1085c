"""The self-signed certificate of a networked server."""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from flight_server.core.config import Settings
from flight_server.process import certificates
from flight_server.process.certificates import with_tls
from flight_server.process.listener import tls_options
from store.model.errors import InvalidArgument


def networked(directory: Path, **more: object) -> Settings:
    return replace(Settings(db=directory / "s.duckdb", host="0.0.0.0", auth=Path("tokens.toml")), **more)


def test_networked_server_makes_a_certificate_and_reuses_it(tmp_path):
    first = with_tls(networked(tmp_path))
    assert first.tls_cert == tmp_path / "s.duckdb.tls/cert.pem"
    assert tls_options(first)["tls_certificates"]
    ssl.create_default_context(cafile=str(first.tls_cert))
    assert first.tls_key.stat().st_mode & 0o777 == 0o600
    pem = first.tls_cert.read_bytes()
    assert with_tls(networked(tmp_path)) == first and first.tls_cert.read_bytes() == pem
    names = x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "localhost" in names.get_values_for_type(x509.DNSName)


def test_certificate_close_to_expiry_is_renewed(tmp_path, monkeypatch):
    monkeypatch.setattr(certificates, "VALID_DAYS", certificates.RENEW_DAYS - 1)
    old = with_tls(networked(tmp_path)).tls_cert.read_bytes()
    monkeypatch.undo()
    assert with_tls(networked(tmp_path)).tls_cert.read_bytes() != old


@pytest.mark.parametrize(
    "more", [{"host": "localhost"}, {"insecure": True}, {"tls_cert": Path("c"), "tls_key": Path("k")}]
)
def test_no_certificate_is_made_when_none_is_needed(tmp_path, more):
    settings = networked(tmp_path, **more)
    assert with_tls(settings) is settings
    assert list(tmp_path.iterdir()) == []


def test_unwritable_directory_is_an_error(tmp_path):
    (tmp_path / "s.duckdb.tls").write_text("a file")
    with pytest.raises(InvalidArgument, match="cannot be written"):
        with_tls(networked(tmp_path))
