"""The age of what pages and the Iceberg catalog of a follower answer from."""

from __future__ import annotations

import urllib.error
import urllib.request

from flight_server.core.wire.lag import MAX_LAG
from store.role import Role
from tests.flight_server.faces.web.serving import pages_of
from tests.flight_server.serving import app_in


class Behind(Role):
    tells = True
    lag_ms = 5000
    generation = 7


def status(url, most_ms):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers={MAX_LAG: most_ms})) as answer:
            headers, status = answer.headers, answer.status
    except urllib.error.HTTPError as error:
        headers, status = error.headers, error.code
    assert (headers["x-statflight-generation"], headers["x-statflight-lag-ms"]) == ("7", "5000")
    return status


def test_answers_older_than_the_caller_allows_are_refused():
    with app_in() as app, pages_of(app) as url:
        app.role = Behind()
        for path in ("", "index.json", "sql.json?q=SELECT+1", "iceberg/v1/namespaces"):
            assert [status(f"{url.rstrip('/')}/{path}", most) for most in ("5000", "4999", "soon")] == [200, 503, 400]
        assert status(f"{url.rstrip('/')}/health", "0") == 200
