"""ETags and conditional requests, and the encodings that a client takes."""

from __future__ import annotations

import pytest

from flight_server.faces.iceberg_rest.conditional import is_known, takes_gzip


@pytest.mark.parametrize("sent", ['"a"', 'W/"a"', '"b", W/"a"', '"b","a"', " * "])
def test_a_tag_is_known(sent):
    assert is_known([sent], "a") and is_known(['"c"', sent], "a")


@pytest.mark.parametrize("sent", ['"b"', "a", '"ab"', '"b", "c"', '"a', '"*"', ""])
def test_a_tag_is_not_known(sent):
    assert not is_known([sent], "a") and not is_known([], "a")


@pytest.mark.parametrize("sent", ["gzip", "gzip, deflate", "br;q=1.0, GZIP;q=0.5", "*", "x-gzip", "identity;q=0, *"])
def test_gzip_is_taken(sent):
    assert takes_gzip([sent])


@pytest.mark.parametrize("sent", ["", "identity", "gzip;q=0", "gzip;q=0.000, *", "*;q=0", "gzip;q=x", "gzipped"])
def test_gzip_is_not_taken(sent):
    assert not takes_gzip([sent]) and not takes_gzip([])
