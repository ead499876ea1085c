"""Profiles of tables in the formats of data catalogs: OpenLineage, DataHub, OpenMetadata.

Pure functions from the statistics of one table to JSON. A number is left out if it is unknown or the format
has no field for it; values of the data (most common values) are in a document only when asked for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlsplit

from store.model.format_facts import facts_in
from store.model.logical_types import MEASURED

PRODUCER: Final = "urn:statflight"
"""A name, which OpenLineage allows: a URL would have to lead to a page."""

_OPENLINEAGE: Final = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/DatasetEvent"
_METRICS: Final = (
    "https://openlineage.io/spec/facets/1-0-0/DataQualityMetricsDatasetFacet.json#/$defs/DataQualityMetricsDatasetFacet"
)
_VERSION: Final = (
    "https://openlineage.io/spec/facets/1-0-1/DatasetVersionDatasetFacet.json#/$defs/DatasetVersionDatasetFacet"
)
_QUARTILES: Final = {0.25: "firstQuartile", 0.5: "median", 0.75: "thirdQuartile"}


@dataclass(frozen=True)
class Profile:
    """Statistics of one table at its current snapshot.

    Attributes:
        table: Row of `sys.tables`.
        record: Row of `stats.tables`, or empty.
        columns: Rows of `stats.columns`.
        quantiles: Column id → quantile → value as canonical text.
        histograms: Column id → rows of `stats.histograms`, in order.
        common: Column id → rows of `stats.most_common_values`; empty unless asked for.
    """

    table: Mapping[str, Any]
    record: Mapping[str, Any]
    columns: Sequence[Mapping[str, Any]]
    quantiles: Mapping[int, Mapping[float, str | None]] = field(default_factory=dict)
    histograms: Mapping[int, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    common: Mapping[int, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Catalog, schema and table with dots between."""
        return ".".join(str(self.table[part]) for part in ("table_catalog", "table_schema", "table_name"))


def openlineage(profile: Profile, now: datetime) -> dict[str, Any]:
    """A `DatasetEvent` with the facet `dataQualityMetrics`, which holds numbers only."""
    place = urlsplit(str(profile.table["location"] or ""))
    local = place.scheme in ("", "file")
    metrics = {column["column_name"]: _lineage_column(profile, column) for column in profile.columns}
    facet = {
        "_producer": PRODUCER,
        "_schemaURL": _METRICS,
        "rowCount": profile.record.get("row_count"),
        "bytes": profile.record.get("total_size_bytes"),
        "fileCount": profile.record.get("data_file_count"),
        "columnMetrics": metrics,
    }
    version = {"_producer": PRODUCER, "_schemaURL": _VERSION, "datasetVersion": str(profile.table["snapshot_id"])}
    return {
        "eventTime": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "producer": PRODUCER,
        "schemaURL": _OPENLINEAGE,
        "dataset": {
            "namespace": "file" if local else f"{place.scheme}://{place.netloc}",
            "name": place.path if local else place.path.lstrip("/"),
            "facets": {"dataQualityMetrics": _known(facet), "version": version},
        },
    }


def _lineage_column(profile: Profile, column: Mapping[str, Any]) -> dict[str, Any]:
    numeric = _is_number(column)
    own = profile.quantiles.get(column["column_id"], {}) if numeric else {}
    quantiles = {f"{q:g}": number for q, text in own.items() if (number := _number(text)) is not None}
    return _known(
        {
            "nullCount": column["null_count"],
            "distinctCount": _distinct(column),
            "count": column["row_count"],
            "min": _number(column["min"]) if numeric else None,
            "max": _number(column["max"]) if numeric else None,
            "quantiles": quantiles or None,
        }
    )


def datahub(profile: Profile, now: datetime) -> dict[str, Any]:
    """A proposal of the timeseries aspect `datasetProfile`, for `/aspects?action=ingestProposal`."""
    rows = profile.record.get("row_count")
    value = _known(
        {
            "timestampMillis": _millis(now),
            "rowCount": rows,
            "columnCount": len(profile.columns),
            "sizeInBytes": profile.record.get("total_size_bytes"),
            "fieldProfiles": [_datahub_field(profile, column) for column in profile.columns],
        }
    )
    format = str(profile.table["format"])
    platform = facts_in(format, profile.table.get("properties")).platform or format
    urn = f"urn:li:dataset:(urn:li:dataPlatform:{platform},{profile.name},PROD)"
    return {
        "proposal": {
            "entityType": "dataset",
            "entityUrn": urn,
            "changeType": "UPSERT",
            "aspectName": "datasetProfile",
            "aspect": {"contentType": "application/json", "value": json.dumps(value, ensure_ascii=False)},
        }
    }


def _datahub_histogram(buckets: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    if not buckets or any(bucket["lower"] is None for bucket in buckets):
        return None
    edges = [buckets[0]["lower"], *(bucket["upper"] for bucket in buckets)]
    return {"boundaries": edges, "heights": [bucket["row_count"] for bucket in buckets]}


def _datahub_field(profile: Profile, column: Mapping[str, Any]) -> dict[str, Any]:
    name, id, rows = column["column_name"], column["column_id"], column["row_count"]
    quantiles, buckets = profile.quantiles.get(id, {}), profile.histograms.get(id, ())
    distinct, nulls = _distinct(column), column["null_count"]
    return _known(
        {
            "fieldPath": name,
            "uniqueCount": distinct,
            "uniqueProportion": _share(distinct, rows),
            "nullCount": nulls,
            "nullProportion": _share(nulls, rows),
            "min": column["min"],
            "max": column["max"],
            "mean": _text(column.get("mean")),
            "stdev": _text(column.get("stddev")),
            "median": quantiles.get(0.5),
            "quantiles": [
                {"quantile": f"{q:g}", "value": text} for q, text in sorted(quantiles.items()) if text is not None
            ]
            or None,
            "histogram": _datahub_histogram(buckets),
            "distinctValueFrequencies": [
                {"value": value["value"], "frequency": value["count"]} for value in profile.common.get(id, ())
            ]
            or None,
        }
    )


def openmetadata(profile: Profile, now: datetime) -> dict[str, Any]:
    """The body of `PUT /api/v1/tables/{id}/tableProfile`; unknown keys would be refused."""
    at = _millis(now)
    table = _known(
        {
            "timestamp": at,
            "rowCount": profile.record.get("row_count"),
            "columnCount": len(profile.columns),
            "sizeInByte": profile.record.get("total_size_bytes"),
        }
    )
    return {"tableProfile": table, "columnProfile": [_metadata_column(profile, c, at) for c in profile.columns]}


def _metadata_column(profile: Profile, column: Mapping[str, Any], at: int) -> dict[str, Any]:
    name, id, rows, nulls = (column[key] for key in ("column_name", "column_id", "row_count", "null_count"))
    numeric = _is_number(column)
    bounds = (_number(column[side]) if numeric else None for side in ("min", "max"))
    low, high = bounds
    if column["logical_type"] == "DATE":
        low, high = column["min"], column["max"]
    quantiles = {q: _number(text) for q, text in profile.quantiles.get(id, {}).items()} if numeric else {}
    buckets = profile.histograms.get(id, ()) if numeric else ()
    edges = [_number(bucket["upper"]) for bucket in buckets]
    distinct = _distinct(column)
    return _known(
        {
            "name": name,
            "timestamp": at,
            "valuesCount": None if rows is None else rows - (nulls or 0),
            "nullCount": nulls,
            "nullProportion": _share(nulls, rows),
            "distinctCount": distinct,
            "distinctProportion": _share(distinct, rows),
            "min": low,
            "max": high,
            "mean": column.get("mean"),
            **{key: quantiles.get(quantile) for quantile, key in _QUARTILES.items()},
            "maxLength": column["max_width_bytes"] if column["logical_type"] == "STRING" else None,
            "histogram": {
                "boundaries": [f"{edge:g}" for edge in edges if edge is not None],
                "frequencies": [round(bucket["row_count"]) for bucket in buckets],
            }
            if buckets
            else None,
        }
    )


FORMATS: Final = {"openlineage": openlineage, "datahub": datahub, "openmetadata": openmetadata}


def _is_number(column: Mapping[str, Any]) -> bool:
    return str(column["logical_type"] or "").partition("(")[0] in MEASURED


def _number(text: Any) -> int | float | None:
    """A canonical bound as a JSON number; None where JSON has none for it."""
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        value = float(text)
        return value if math.isfinite(value) else None


def _distinct(column: Mapping[str, Any]) -> int | None:
    return None if column["ndv"] is None else round(column["ndv"])


def _share(count: int | None, rows: int | None) -> float | None:
    return None if count is None or not rows else count / rows


def _text(value: float | None) -> str | None:
    return None if value is None else repr(value)


def _millis(now: datetime) -> int:
    return int(now.timestamp() * 1000)


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
