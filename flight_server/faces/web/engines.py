"""What to paste into engines so that they read a table by the Iceberg catalog of the same server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

FORMATS: Final = ("iceberg", "delta", "parquet")
"""Formats that the catalog has."""
_PLAN_ALONE: Final = "iceberg"  # the format whose manifests engines can read that do not ask for plans

Recipe = tuple[str, str]
"""An engine, and the text for it."""


def recipes(catalog: str, about: Mapping[str, Any]) -> list[Recipe]:
    """The text for each engine that can read a table by the catalog.

    Args:
        catalog: The catalog's address; empty if there is none.
        about: The table's row of `sys.tables`.
    """
    if not catalog or about["format"] not in FORMATS:
        return []
    levels = [about["table_catalog"], *about["table_schema"].split(".")]
    name = about["table_name"]
    loaded = f'RestCatalog("statflight", uri="{catalog}").load_table({(*levels, name)!r})'
    in_spark = ".".join(_quoted(part, "`") for part in ("statflight", *levels, name))
    found = [
        ("pyiceberg", f'{loaded}.scan(row_filter="…").to_arrow()'),
        ("Polars", f'pl.scan_iceberg({loaded}, reader_override="pyiceberg")'),
        (
            "Spark with Iceberg 1.11 or later",
            "spark.sql.catalog.statflight       org.apache.iceberg.spark.SparkCatalog\n"
            "spark.sql.catalog.statflight.type  rest\n"
            f"spark.sql.catalog.statflight.uri   {catalog}\n\nSELECT * FROM {in_spark}",
        ),
    ]
    if about["format"] == _PLAN_ALONE:
        quoted = f"{_quoted('.'.join(levels))}.{_quoted(name)}"
        found += [
            (
                "Trino, in etc/catalog/statflight.properties",
                "connector.name=iceberg\niceberg.catalog.type=rest\n"
                f"iceberg.rest-catalog.uri={catalog}\niceberg.rest-catalog.nested-namespace-enabled=true\n\n"
                f"SELECT * FROM statflight.{quoted}",
            ),
            (
                "DuckDB",
                f"ATTACH 'any' AS statflight (TYPE iceberg, ENDPOINT '{catalog}',"
                f" AUTHORIZATION_TYPE 'none', ACCESS_DELEGATION_MODE 'none');\nSELECT * FROM statflight.{quoted};",
            ),
        ]
    return found


def _quoted(name: str, mark: str = '"') -> str:
    return mark + name.replace(mark, mark * 2) + mark
