"""`statflight emit`: profiles of tables for data catalogs, printed as JSON or sent to them."""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote, urlsplit

from flight_server.faces.commands.connection import CONNECTION, ConnectionOptions, connect
from flight_server.faces.commands.output import CommandError, misuse, say, tell
from flight_server.faces.commands.parameters import option
from flight_server.faces.commands.targets import TableNames, check_targets, for_each

if TYPE_CHECKING:
    from flight_server.core.views.reader import Reader
    from flight_server.faces.present.profiles import Profile

TIMEOUT_SECONDS: Final = 30.0
TOKEN_VARIABLE: Final = "STATFLIGHT_EMIT_TOKEN"  # noqa: S105  the name of a variable


def emit(
    tables: TableNames,
    to: Annotated[str, option("--to", metavar="FORMAT", help="openlineage, datahub or openmetadata.")],
    url: Annotated[str | None, option("--url", help="Where to send them; printed when not given.")] = None,
    with_values: Annotated[
        bool, option("--with-values", help="Send most common values (DataHub), which are data.")
    ] = False,
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """Emit a profile of each table that the targets match; a bearer token for the URL is read from
    STATFLIGHT_EMIT_TOKEN."""
    from flight_server.faces.present.profiles import FORMATS

    if to not in FORMATS:
        misuse(f"--to {to!r}: must be one of {', '.join(FORMATS)}")
    if url is not None and urlsplit(url).scheme not in ("http", "https"):
        misuse(f"--url {url!r}: must be http:// or https://")
    if with_values and to != "datahub":
        misuse(f"--with-values: {to} has no place for values")
    targets = check_targets(tables)
    with connect(connection) as client:

        def write(reader: Reader, name: str) -> None:
            profile = profile_of(reader, name, with_values)
            document = FORMATS[to](profile, datetime.now(UTC))
            if url is None:
                tell(json.dumps(document, ensure_ascii=False))
            else:
                _send(to, url.rstrip("/"), profile, document)
                say(f"{name}: sent")

        if for_each(client, targets, write):
            sys.exit(1)


def profile_of(reader: Reader, name: str, with_values: bool = False) -> Profile:
    """Reads the statistics of a table at its current snapshot.

    Args:
        with_values: Includes its most common values, which are data.

    Raises:
        CommandError: The table has no statistics.
    """
    from flight_server.core.views import table_summary
    from flight_server.core.views.reader import rows_of
    from flight_server.faces.present import column_labels
    from flight_server.faces.present.profiles import Profile

    found = table_summary.gather(reader, name, "current", shapes=True)
    if not (columns := found.rows):
        raise CommandError(f"{name}: no statistics are stored; capture it first")
    (table,) = rows_of(reader, "sys.tables", name)
    labels = column_labels.labels(columns)  # which are unique
    columns = [row | {"column_name": labels.get(row["column_id"], row["column_name"])} for row in columns]
    common = found.common_values if with_values else {}
    return Profile(table, found.table or {}, columns, found.quantiles, found.histograms, common)


def _send(to: str, url: str, profile: Profile, document: Mapping[str, Any]) -> None:
    match to:
        case "openlineage":
            _request("POST", f"{url}/api/v1/lineage", document)
        case "datahub":
            _request("POST", f"{url}/aspects?action=ingestProposal", document)
        case _:
            entity = _request("GET", f"{url}/api/v1/tables/name/{quote(profile.name, safe='')}")
            if "id" not in entity:
                raise CommandError(f"{url}: answered without an id for {profile.name}")
            _request("PUT", f"{url}/api/v1/tables/{quote(str(entity['id']), safe='')}/tableProfile", document)


def _request(method: str, url: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", "User-Agent": "statflight"}
    if secret := os.environ.get(TOKEN_VARIABLE, "").strip():
        headers["Authorization"] = f"Bearer {secret}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310  http or https, checked
    host = urlsplit(url).netloc.rpartition("@")[2]
    from capture.connectors.storage.http import OPENER  # which hands the secret to no other host

    try:
        with OPENER.open(request, timeout=TIMEOUT_SECONDS) as answer:
            content = answer.read()
    except urllib.error.HTTPError as refusal:
        with refusal:
            text = refusal.read(300).decode("utf-8", "replace").strip()
        raise CommandError(f"{host} answered {refusal.code} to {method}: {text or refusal.reason}") from None
    except (urllib.error.URLError, TimeoutError, OSError) as error:
        raise CommandError(f"{host} cannot be reached: {getattr(error, 'reason', error)}") from None
    try:
        found = json.loads(content or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
