"""Home `glue`: column statistics in AWS Glue's catalog, for Athena, Redshift Spectrum and Trino.

The API takes 25 columns per call. If a later call fails, the statistics replaced by earlier calls are restored. Row
count and size are parameters of the table's entry, which the last call replaces unless it changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache, partial
from typing import Any, ClassVar, Final

from capture.connectors.options import timeout_of
from capture.connectors.storage.places import batched
from capture.publishers.hive_types import (
    DATE,
    DECIMAL,
    HiveColumn,
    HivePublisherBase,
    changed_at,
    unscaled,
    with_counts,
    without_null,
)
from capture.publishers.spi import Draft, LostRace, TableStatistics
from store.model.errors import InvalidArgument, StatflightError, UpstreamError, first_line

UPDATED_AT_ONCE: Final = 25
READ_AT_ONCE: Final = 100
_RETRIED: Final = ("ConcurrentModificationException", "ConflictException")
_DENIED: Final = ("AccessDeniedException", "AccessDenied", "UnauthorizedException", "ResourceNotReadyException")
_FIELDS: Final = {
    "LONG": "LongColumnStatisticsData",
    "DOUBLE": "DoubleColumnStatisticsData",
    "DECIMAL": "DecimalColumnStatisticsData",
    "DATE": "DateColumnStatisticsData",
    "STRING": "StringColumnStatisticsData",
    "BINARY": "BinaryColumnStatisticsData",
}
_VALUES: Final = {
    "nulls": "NumberOfNulls",
    "distinct": "NumberOfDistinctValues",
    "low": "MinimumValue",
    "high": "MaximumValue",
    "greatest_bytes": "MaximumLength",
    "average_bytes": "AverageLength",
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class GluePublisher(HivePublisherBase):
    """Column statistics and row counts in AWS Glue's catalog."""

    home: ClassVar[str] = "glue"
    options: ClassVar[frozenset[str]] = frozenset(
        {
            "database",
            "table",
            "catalog_id",
            "region",
            "endpoint_url",
            "access_key_id",
            "secret_access_key",
            "session_token",
            "profile",
        }
    )

    def write(self, draft: Draft) -> int | None:
        withdrawn = self.withdrawn(draft)
        now = datetime.now(UTC).replace(microsecond=0)
        items = [_item(column, now) for column in draft.content]
        names = [*(item["ColumnName"] for item in items), *withdrawn]
        before = {item["ColumnName"]: item for item in self._items(names)}
        done: list[str] = []
        try:
            for block in batched(items, UPDATED_AT_ONCE):
                answer = self._call("update_column_statistics_for_table", ColumnStatisticsList=block)
                if errors := answer.get("Errors"):
                    failed = {error["ColumnStatistics"]["ColumnName"] for error in errors}
                    done += [item["ColumnName"] for item in block if item["ColumnName"] not in failed]
                    reason = errors[0].get("Error", {}).get("ErrorMessage") or "no reason given"
                    raise UpstreamError(f'glue: column "{sorted(failed)[0]}" was refused ({reason})')
                done += [item["ColumnName"] for item in block]
            for name in withdrawn:
                self.delete([name])
                done.append(name)
            self.write_counts(self.statistics)
        except (StatflightError, PermissionError):
            self._restore(done, before)
            raise
        return None

    def stored(self, names: Sequence[str]) -> Iterable[tuple[str, int | None, datetime | None]]:
        for item in self._items(names):
            data = item["StatisticsData"]
            statistics = data.get(_FIELDS.get(data["Type"], ""), {})
            distinct = without_null(statistics.get("NumberOfDistinctValues"), statistics.get("NumberOfNulls"))
            yield item["ColumnName"], distinct, item["AnalyzedTime"]

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self._call("delete_column_statistics_for_table", ColumnName=name)

    def parameters(self) -> tuple[Mapping[str, str], datetime | None]:
        entry = self._entry()
        parameters = entry.get("Parameters") or {}
        return parameters, changed_at(parameters) or entry.get("UpdateTime")

    def write_counts(self, statistics: TableStatistics | None) -> None:
        entry = self._entry()
        parameters = with_counts(entry.get("Parameters") or {}, statistics)
        if parameters is None:
            return
        allowed = self._client.meta.service_model.shape_for("TableInput").members
        given = {name: value for name, value in entry.items() if name in allowed} | {"Parameters": parameters}
        place = {name: value for name, value in self._table.items() if name != "TableName"}
        version = {"VersionId": entry["VersionId"]} if "VersionId" in entry else {}
        try:
            self._ask("update_table", place | {"TableInput": given, "SkipArchive": True} | version)
        except PermissionError:
            self.remarks.append("row count left out: the table's entry may not be changed")

    def _restore(self, names: Sequence[str], before: dict[str, Any]) -> None:
        """Restores the former statistics of columns after a failed call."""
        for block in batched([before[name] for name in names if name in before], UPDATED_AT_ONCE):
            self._call("update_column_statistics_for_table", ColumnStatisticsList=block)
        self.delete([name for name in names if name not in before])

    def _items(self, names: Sequence[str]) -> list[dict[str, Any]]:
        return [
            item
            for block in batched(names, READ_AT_ONCE)
            for item in self._call("get_column_statistics_for_table", ColumnNames=block).get("ColumnStatisticsList", [])
        ]

    def columns(self) -> Iterable[tuple[str, str]]:
        table = self._entry()
        columns = table.get("StorageDescriptor", {}).get("Columns", []) + table.get("PartitionKeys", [])
        return ((column["Name"], column.get("Type", "")) for column in columns)

    def _entry(self) -> dict[str, Any]:
        """The table's entry in the catalog."""
        name = {"DatabaseName": self._table["DatabaseName"], "Name": self._table["TableName"]}
        lookup = {key: value for key, value in self._table.items() if key == "CatalogId"} | name
        entry: dict[str, Any] = self._ask("get_table", lookup)["Table"]
        return entry

    @cached_property
    def _table(self) -> dict[str, str]:
        database, table = self.place
        catalog = self.destination.options.get("catalog_id")
        return {"DatabaseName": database, "TableName": table} | ({} if catalog is None else {"CatalogId": catalog})

    def _call(self, method: str, **arguments: Any) -> dict[str, Any]:
        return self._ask(method, self._table | arguments)

    def _ask(self, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer: dict[str, Any] = getattr(self._client, method)(**arguments)
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            message = error.response.get("Error", {}).get("Message", "")
            if code in _RETRIED:
                raise LostRace("glue: the catalog is being changed by another writer") from None
            if code in _DENIED:
                raise PermissionError from None
            if code == "EntityNotFoundException":
                raise self.unknown_table() from None
            raise UpstreamError(f"glue: {method} was refused ({code}: {message[:200]})") from None
        except BotoCoreError as error:
            raise UpstreamError(f"glue: the catalog cannot be reached ({type(error).__name__})") from None
        return answer

    @cached_property
    def _client(self) -> Any:
        options = _aws_options(self.destination.config.options) | dict(self.destination.options)
        client_of = _client_of if "access_key_id" in options else _client_of.__wrapped__  # profiles may change
        return client_of(tuple(sorted(options.items())), timeout_of(self.destination.config.options))


@lru_cache(maxsize=16)
def _client_of(options: tuple[tuple[str, str], ...], seconds: float) -> Any:
    """A cached, thread-safe client; botocore reads a megabyte of service descriptions for each new one.

    Raises:
        InvalidArgument: The options have no region, or the profile does not exist.
    """
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    given = dict(options)
    try:
        session = boto3.session.Session(
            given.get("access_key_id"),
            given.get("secret_access_key"),
            given.get("session_token"),
            given.get("region"),
            profile_name=given.get("profile"),
        )
        return session.client(
            "glue",
            endpoint_url=given.get("endpoint_url"),
            config=Config(connect_timeout=min(10.0, seconds), read_timeout=seconds, retries={"max_attempts": 3}),
        )
    except (BotoCoreError, ValueError) as error:
        text = first_line(error, 200).rstrip(".")
        hint = "set the option region" if "region" in text else ""
        raise InvalidArgument(f"glue: {text}", hint=hint) from None


def _aws_options(options: Any) -> dict[str, str]:
    """Credentials and region from a connector's options, under the names of any library."""
    texts = {}
    for name, value in options.items():
        plain = name.lower().replace("-", "_").replace(".", "_")
        for prefix in ("aws_", "glue_", "client_", "s3_"):
            plain = plain.removeprefix(prefix)
        if plain in ("access_key_id", "secret_access_key", "session_token", "region"):
            texts[plain] = str(value)
    return texts


def _item(column: HiveColumn, analyzed: datetime) -> dict[str, Any]:
    counts = column.values(_VALUES, partial(_value, column.kind))
    return {
        "ColumnName": column.name,
        "ColumnType": column.hive_type,
        "AnalyzedTime": analyzed,
        "StatisticsData": {"Type": column.kind, _FIELDS[column.kind]: counts},
    }


def _value(kind: str, value: Any) -> Any:
    if kind == DATE:
        return _EPOCH + timedelta(days=value)
    if kind == DECIMAL:
        number, scale = unscaled(value)
        return {"UnscaledValue": number, "Scale": scale}
    return value
