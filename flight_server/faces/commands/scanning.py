"""The commands that plan a scan, which files a condition needs and what they cost to read, and that answer a query
without one."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from flight_server.core.views import numbers
from flight_server.core.views.snapshot_words import snapshot_at
from flight_server.faces.commands.common import Answer, names_of
from flight_server.faces.commands.connection import CONNECTION, ConnectionOptions, connect
from flight_server.faces.commands.output import misuse, say, tell, warn
from flight_server.faces.commands.parameters import argument, option
from flight_server.faces.commands.reach import PLANS, Keep, reach
from flight_server.faces.commands.targets import Snapshot, TableName, check_targets, find_table, snapshot_of
from flight_server.faces.present import render, text
from flight_server.faces.present.render import Format
from store.model.errors import InvalidArgument

if TYPE_CHECKING:
    from flight_server.client.scan import Scan
    from flight_server.client.stats_reader import StatsReader

TOO_MANY_BYTES: Final = 3  # exit status


class PlanFormat(StrEnum):
    """How a plan is printed: as rows, as paths alone, or as code to paste into an engine."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"
    PATHS = "paths"
    DUCKDB = "duckdb"
    POLARS = "polars"
    SPARK = "spark"


def scan(
    table: TableName,
    where: Annotated[str | None, option(metavar="SQL", help='A condition, such as "id = 5".')] = None,
    columns: Annotated[
        list[str] | None, option(metavar="A,B", help="The columns to be read; all when absent. Repeatable.")
    ] = None,
    snapshot: Snapshot = "current",
    paths: Annotated[bool, option("--paths", help="Print paths alone, one per line.")] = False,
    max_bytes: Annotated[int | None, option(min=0, help="Exit with 3 if there is more to read.")] = None,
    db: Keep = None,
    format: Annotated[
        PlanFormat, option("--format", "-f", help="Rows, paths, or code that reads the files.")
    ] = PlanFormat.TABLE,
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """List the files that a condition needs, without opening any."""
    targets, chosen, at = check_targets([table], paths=True), names_of(columns), snapshot_of(snapshot)
    if paths and format is not PlanFormat.TABLE:
        misuse("--paths and --format do not go together")
    shown = PlanFormat.PATHS if paths else format
    with reach(connection, targets, [at], db, PLANS) as (client, (target,), failed):
        name = find_table(client, target)
        plan = client.scan(name, where=where, columns=chosen, snapshot=snapshot_at(client, name, at))
        code = _code(client, plan, shown, where, chosen)
    if code is not None:
        tell(code)
    elif shown is PlanFormat.PATHS:
        for path in plan.files["file_path"].to_pylist():
            tell(path)
    elif shown is PlanFormat.TABLE:
        _write(plan)
    else:
        render.write(plan.files, Format(shown))
    read = pc.coalesce(plan.files["bytes_to_read"], plan.files["size_bytes"])
    to_read = int(pc.sum(read.cast(pa.decimal128(38))).as_py() or 0)  # perhaps beyond 64 bits
    say(_totals(plan, to_read))
    if max_bytes is not None and to_read > max_bytes:
        warn(f"statflight: {name}: {to_read} bytes to read, more than the {max_bytes} of --max-bytes")
        sys.exit(TOO_MANY_BYTES)
    if failed:
        sys.exit(1)


def _code(
    client: StatsReader, plan: Scan, format: PlanFormat, where: str | None, columns: Sequence[str] | None
) -> str | None:
    """Code that reads the plan's files, where the format is that of an engine.

    Raises:
        InvalidArgument: The engine cannot read the table.
    """
    from flight_server.faces.present.reader_code import NoReader, Reader, Wanted, code

    if format.value not in [reader.value for reader in Reader]:
        return None
    (row,) = client.read_table("sys.tables", plan.table, ["location", "metadata_location"]).to_pylist()
    try:
        return code(plan, Reader(format), Wanted(where, columns, **row))
    except NoReader as error:
        raise InvalidArgument(str(error)) from None


def estimate(
    table: TableName,
    where: Annotated[str | None, option(metavar="SQL", help='A condition, such as "id = 5".')] = None,
    columns: Annotated[
        list[str] | None, option(metavar="A,B", help="The columns to be read; all when absent. Repeatable.")
    ] = None,
    snapshot: Snapshot = "current",
    db: Keep = None,
    format: Annotated[Answer, option("--format", "-f", help="How the estimate is written.")] = Answer.TEXT,
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """Estimate what a condition leaves of a table, without opening a file."""
    targets, chosen, at = check_targets([table], paths=True), names_of(columns), snapshot_of(snapshot)
    with reach(connection, targets, [at], db, PLANS) as (client, (target,), failed):
        name = find_table(client, target)
        found = client.estimate(name, where, columns=chosen, snapshot=snapshot_at(client, name, at))
    if format is Answer.JSON:
        tell(json.dumps(render.plain(found), ensure_ascii=False))
    else:
        _write_estimate(found)
    if failed:
        sys.exit(1)


def _write_estimate(found: dict[str, Any]) -> None:
    read = found["bytes_to_read"]
    tell(
        f"{numbers.interval(found['row_count'])} rows, {numbers.count(found['files'])} of"
        f" {numbers.count(found['files_all'])} files, {'unknown' if read is None else numbers.size(read)} to read"
    )
    rows = [
        [name, numbers.interval(column["null_count"]), numbers.interval(column["ndv"])]
        for name, column in found["columns"].items()
    ]
    if rows:
        text.write_text(("column", "nulls", "distinct"), rows, right=[False, True, True])


def answer(
    sql: Annotated[str, argument(metavar="SQL", help="SELECT count(*), min(a) FROM a full name WHERE …")],
    snapshot: Annotated[str, option(metavar="SNAPSHOT", help="An id, or 'current'.")] = "current",
    format: Annotated[Format, option("--format", "-f", help="How the row is written.")] = Format.TABLE,
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """Answer counts, minima and maxima that statistics know exactly."""
    at = snapshot_of(snapshot)
    if at in ("previous", "first"):
        misuse(f"--snapshot {at}: an answer is of the current snapshot, or of one by its id")
    with connect(connection) as client:
        found = client.answer(sql, snapshot=at)
    if found.values is None:
        warn(f"statflight: not known exactly: {found.reason}")
        sys.exit(1)
    render.write(pa.Table.from_pylist([found.values]), format)


def _write(plan: Scan) -> None:
    rows = [
        [
            file["file_path"],
            render.text_of(file["row_count"]),
            numbers.size(file["size_bytes"]),
            file["match"],
            file["kept_because"] or "",
        ]
        for file in plan.files.to_pylist()
    ]
    right = [False, True, True, False, False]
    text.write_text(("file", "rows", "size", "match", "kept because"), rows, right=right, whole=("file",))


def _totals(plan: Scan, to_read: int) -> str:
    """Lines on the files, rows and bytes kept and skipped, and on what skipped them."""
    files, rows = plan.summary["files"], plan.summary["rows"]
    skipped = ", ".join(
        f"{numbers.count(files[f'skipped_by_{what}'])} by {what}"
        for what in ("partition", "bounds")
        if files[f"skipped_by_{what}"]
    )
    return (
        f"{numbers.count(files['kept'])} of {numbers.count(files['all'])} files,"
        f" {numbers.count(rows['kept'])} of {numbers.count(rows['all'])} rows,"
        f" {numbers.size(to_read)} to read" + (f"; skipped {skipped}" if skipped else "")
    )
