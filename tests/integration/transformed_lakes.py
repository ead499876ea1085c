"""Random Iceberg tables that are partitioned by transforms, which pyiceberg computes without its Rust core."""

from __future__ import annotations

import random
import uuid
from collections import defaultdict
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    IcebergType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimeType,
)
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros, time_to_micros

from tests.capture.connectors.iceberg_tables import make_catalog
from tests.integration.random_lakes import Lake

ROWS: Final = 120
_STORED: Final = {DateType: date_to_days, TimestampType: datetime_to_micros, TimeType: time_to_micros}
_COLUMNS: Final[dict[str, tuple[IcebergType, Any]]] = {
    "id": (LongType(), lambda rng: rng.randint(-40, 40)),
    "word": (StringType(), lambda rng: "".join(rng.choices("aé€", k=rng.randint(0, 4)))),
    "day": (DateType(), lambda rng: date(1970, 1, 1) + timedelta(rng.randint(-800, 800))),
    "moment": (TimestampType(), lambda rng: datetime(1970, 1, 1) + timedelta(0, 0, rng.randint(-(10**11), 10**11))),
    "clock": (TimeType(), lambda rng: time(rng.randint(0, 23), rng.randint(0, 59), 0, rng.choice((0, 1)))),
    "amount": (DecimalType(9, 2), lambda rng: Decimal(rng.randint(-900, 900)).scaleb(-2)),
    "data": (BinaryType(), lambda rng: bytes(rng.choices(range(256), k=rng.randint(0, 3)))),
}
_TRANSFORMS: Final[dict[str, list[Transform[Any, Any]]]] = {
    "id": [BucketTransform(4), BucketTransform(3), TruncateTransform(7), IdentityTransform()],
    "word": [BucketTransform(4), TruncateTransform(1), TruncateTransform(2)],
    "day": [BucketTransform(4), YearTransform(), MonthTransform(), DayTransform()],
    "moment": [BucketTransform(4), YearTransform(), MonthTransform(), DayTransform(), HourTransform()],
    "clock": [BucketTransform(4)],
    "amount": [BucketTransform(4), TruncateTransform(50), VoidTransform()],
    "data": [BucketTransform(4), TruncateTransform(1)],
}


def transformed(rng: random.Random, root: Path, *, metrics: bool) -> Lake:
    """A table with a few partition specs, each with some appended rows.

    Args:
        rng: Source of what is random.
        root: A new directory.
        metrics: Manifests have counts and bounds; else neither they nor footers have bounds.
    """
    catalog = make_catalog(root)
    catalog.create_namespace("n")
    schema = Schema(*(NestedField(at, name, type) for at, (name, (type, _)) in enumerate(_COLUMNS.items(), 1)))
    table = catalog.create_table("n.t", schema)
    parts = []
    for number in range(4):
        chosen = rng.sample(list(_TRANSFORMS), 2)
        with table.update_spec() as update:
            for field in table.spec().fields:
                update.remove_field(field.name)
            for name in chosen:
                update.add_field(name, rng.choice(_TRANSFORMS[name]), f"{name} '/~ {number}")
        table = catalog.load_table("n.t")
        parts.append(_append(rng, table, root, metrics=metrics))
        table = catalog.load_table("n.t")
    options = {"type": "sql", "warehouse": f"file://{root / 'warehouse'}", "name": "lake"}
    return Lake("iceberg", f"sqlite:///{root / 'catalog.db'}", ("n", "t"), [pa.concat_tables(parts)], options)


def _append(rng: random.Random, table: Any, root: Path, *, metrics: bool) -> pa.Table:
    """Appends random rows in a file for each partition of the newest spec."""
    schema, spec = table.schema(), table.spec()
    rows = [
        {name: None if rng.random() < 0.1 else value(rng) for name, (_, value) in _COLUMNS.items()} for _ in range(ROWS)
    ]
    by_partition = defaultdict(list)
    for row in rows:
        by_partition[tuple(_partition(field, schema, row) for field in spec.fields)].append(row)
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
        for partition, members in by_partition.items():
            update.append_data_file(_file(root, schema, spec, partition, members, metrics=metrics))
    return pa.Table.from_pylist(rows, schema.as_arrow())


def _partition(field: PartitionField, schema: Schema, row: dict[str, Any]) -> Any:
    source = schema.find_field(field.source_id)
    return field.transform.transform(source.field_type)(_stored(source.field_type, row[source.name]))


def _stored(type: IcebergType, value: Any) -> Any:
    convert = _STORED.get(type.__class__)
    return value if value is None or convert is None else convert(value)


def _file(
    root: Path,
    schema: Schema,
    spec: PartitionSpec,
    partition: tuple[Any, ...],
    rows: list[dict[str, Any]],
    *,
    metrics: bool,
) -> DataFile:
    path = root / f"{uuid.uuid4()}.parquet"
    written = pa.Table.from_pylist(rows, schema.as_arrow())
    pq.write_table(written, path, write_statistics=False)
    counts: dict[str, dict[int, Any]] = {}
    if metrics:
        present = {field: [row[field.name] for row in rows if row[field.name] is not None] for field in schema.fields}
        counts = {
            "value_counts": {field.field_id: len(rows) for field in present},
            "null_value_counts": {field.field_id: len(rows) - len(values) for field, values in present.items()},
            "lower_bounds": {f.field_id: to_bytes(f.field_type, min(v)) for f, v in present.items() if v},
            "upper_bounds": {f.field_id: to_bytes(f.field_type, max(v)) for f, v in present.items() if v},
        }
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(*partition),
        record_count=len(rows),
        file_size_in_bytes=path.stat().st_size,
        **counts,
    )
    file.spec_id = spec.spec_id
    return file
