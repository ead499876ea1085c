"""Statistics of a Spark SQL expression on the columns of a table.

Rows are read as for other statistics (deletes applied, columns mapped, constants filled in), with only the columns that
the expression may refer to. Spark evaluates the expression, and the kernels aggregate its values.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from capture.compute import kernels
from capture.compute.file_scan import PARTIAL_SCHEMA, Answer, from_batch, to_batch
from capture.compute.partial import Partial, SketchSelection
from capture.compute.pieces import Pieces, divided
from capture.compute.readers import tasks
from capture.connectors.rows.column_values import plain
from capture.connectors.spi import Column, ScanColumn, ScanTask
from capture.spark import judge
from capture.spark.job import balanced
from capture.spark.session import Spark, ddl
from store.model import bounds, logical_types
from store.model.errors import InvalidArgument, first_line
from store.model.logical_types import Kind, LogicalType

_BATCH_ROWS: Final = 1 << 16
_READABLE: Final = frozenset(
    {
        Kind.BOOLEAN,
        Kind.INT,
        Kind.FLOAT,
        Kind.DOUBLE,
        Kind.DECIMAL,
        Kind.STRING,
        Kind.JSON,
        Kind.UUID,
        Kind.BINARY,
        Kind.DATE,
        Kind.TIMESTAMP,
        Kind.TIMESTAMPTZ,
    }
)
# What Spark reads unsigned integers as.
_SIGNED: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}
_WIDTHS: Final = {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}


def named(text: str, columns: Sequence[Column]) -> list[Column]:
    """The columns that an expression may refer to, for all words of their names are in it; maybe too many.

    If it may use the value of a struct, not only of its fields, these are the struct and all columns in it.

    Raises:
        InvalidArgument: It may use the value of a struct with a field that Spark cannot read.
    """
    structs = [_parts(column) for column in columns if column.logical_type == "STRUCT"]
    whole = [path for path in structs if _is_value(path, text)]
    found = []
    for column in columns:
        path = _parts(column)
        inside = next((struct for struct in whole if path[: len(struct)] == struct), None)
        if inside is None:
            if _has_words(text, column) and _is_readable(column):
                found.append(column)
            continue
        if path not in structs and not _is_readable(column):
            raise InvalidArgument(
                f'engine_expression_key: the value of the struct "{".".join(inside)}" cannot be read, because '
                f'"{column.name}" in it is {column.logical_type}; an expression may use its other fields'
            )
        found.append(column)
    return found


def unread(text: str, columns: Sequence[Column]) -> str:
    """Says which columns that an expression may refer to cannot be read; empty if there are none."""
    found = [c for c in columns if c.logical_type != "STRUCT" and not _is_readable(c) and _has_words(text, c)]
    return "".join(f'; no expression reads column "{c.name}", which is {c.logical_type}' for c in found)


def _parts(column: Column) -> tuple[str, ...]:
    return column.path or tuple(column.name.split("."))


def _is_readable(column: Column) -> bool:
    lt = logical_types.parse(column.logical_type)
    return lt.kind in _READABLE and (lt.precision or 0) <= 38


def _has_words(text: str, column: Column) -> bool:
    words = {word.lower() for word in re.findall(r"\w+", text)}
    return all(word.lower() in words for word in re.findall(r"\w+", column.name))


def _is_value(struct: tuple[str, ...], text: str) -> bool:
    """True if a text may have the name of a struct without that of a field after it."""
    name = re.escape(struct[-1].replace("`", "``"))
    field = "" if len(struct) > 1 else r"(?<!\.)(?<!\.`)"  # of another struct
    return re.search(rf"{field}(?<!\w){name}(?!\w)(?!`?\s*[.\[])", text, re.I) is not None


def capture(
    spark: Spark,
    planned: Sequence[ScanTask],
    text: str,
    columns: Mapping[int, Column],
    wanted: SketchSelection,
    poll: Callable[[], None],
    note: str = "",
) -> tuple[LogicalType, Partial, int]:
    """The logical type of an expression, its statistics over all files, and the bytes read.

    Args:
        planned: The files, with at least the given columns.
        columns: Column id → column, for the columns it may refer to.
        poll: Callback as in `Spark.run`.
        note: Text for the end of what Spark says of an expression that it does not understand.

    Raises:
        NotDeterministic: The value of the expression is not a function of its row.
        InvalidArgument: The expression reads more than its row, Spark does not understand it, or its values have no
            scalar statistics.
        UpstreamError: A file cannot be read, or Spark failed.
    """
    schema = _schema(columns, _integer_types(planned, columns))
    lt = _result_type(spark, schema, text, note, poll)
    pieces = Pieces(enumerate(planned)).tasks if len(planned) < 3 * spark.cores else list(enumerate(planned))
    groups = balanced(pieces, 3 * spark.cores) or [[]]
    paths = {column_id: _parts(column) for column_id, column in columns.items()}
    payloads = [pickle.dumps(([task for _, task in group], paths)) for group in groups]
    kind = lt.text

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _read(payloads[number], schema)

    def summarise(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        values = [batch.column(0) for batch in batches]
        yield _summary(values, kind, wanted)

    def job(session: Any) -> pa.Table:
        from pyspark.sql import functions

        rows = session.range(0, len(payloads), 1, len(payloads)).mapInArrow(read, _in_spark(schema))
        values = rows.select(functions.expr(text).alias("value"))
        return values.mapInArrow(summarise, ddl(PARTIAL_SCHEMA)).toArrow().cast(PARTIAL_SCHEMA)

    answers = from_batch(spark.call(job, poll))
    size = sum(task.size_bytes for task in planned) if columns else 0  # where no column is read, nothing is
    return lt, kernels.merge([answer.partial for answer in answers if answer.partial], lt), size


def _integer_types(planned: Sequence[ScanTask], columns: Mapping[int, Column]) -> dict[int, pa.DataType]:
    """Spark's types of integer columns by their ids; `hash`, `>>>` and overflow depend on the width.

    A column that is nowhere stored, such as a partition column, is an int if its values fit, as Spark infers it.
    """
    types: dict[int, pa.DataType] = {}
    missing = {column_id for column_id, column in columns.items() if column.logical_type == "INT"}
    for task in planned:
        found = [column for column in task.columns if column.column_id in missing]
        types |= {column.column_id: _WIDTHS[column.width_bytes] for column in found if column.width_bytes}
        stored = [column for column in found if column.path is not None and not column.width_bytes]
        if stored:
            for column, values in tasks.read(divided(task)[0], stored):
                types[column.column_id] = _decoded(values).type
        missing -= types.keys()
        if not missing:
            break
    types |= {column_id: _constant_type(planned, column_id) for column_id in missing}
    return {column_id: _SIGNED.get(type, type) for column_id, type in types.items()}


def _constant_type(planned: Sequence[ScanTask], column_id: int) -> pa.DataType:
    """The type of an integer column that is a constant in each file: an int if all values fit."""
    constants = (c.constant for task in planned for c in task.columns if c.column_id == column_id)
    values = [value for constant in constants if constant is not None for value in constant.to_pylist()]
    fits = all(value is None or -(2**31) <= value < 2**31 for value in values)
    return pa.int32() if fits else pa.int64()


def _schema(columns: Mapping[int, Column], integers: Mapping[int, pa.DataType]) -> pa.Schema:
    """The columns in Arrow's types that are those of Spark, nested by their paths."""
    tree: dict[str, Any] = {}
    for column_id, column in columns.items():
        if column.is_leaf:
            *parents, leaf = _parts(column)
            place = tree
            for parent in parents:
                place = place.setdefault(parent, {})
            lt = logical_types.parse(column.logical_type)
            known = integers.get(column_id, logical_types.to_arrow(lt))
            place[leaf] = pa.string() if lt.kind is Kind.UUID else known

    def of(node: Any) -> Any:
        return pa.struct([(name, of(below)) for name, below in node.items()]) if isinstance(node, dict) else node

    return pa.schema([(name, of(node)) for name, node in tree.items()] or [("_", pa.bool_())])


def _in_spark(schema: pa.Schema) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def _result_type(spark: Spark, schema: pa.Schema, text: str, note: str, poll: Callable[[], None]) -> LogicalType:
    def job(session: Any) -> pa.Table:
        from pyspark.errors import AnalysisException, ParseException
        from pyspark.sql import functions
        from pyspark.sql.pandas.types import to_arrow_type

        judge.check_parsed(session, text)
        empty = session.createDataFrame([], _in_spark(schema))
        try:
            # A condition rejects aggregates, windows and generators, which are not functions of one row.
            _ = empty.where(functions.expr(f"({text}) IS NULL")).schema
            (field,) = empty.select(functions.expr(text).alias("value")).schema.fields
        except (AnalysisException, ParseException, ValueError) as error:
            raise InvalidArgument(f"engine_expression_key: Spark says {first_line(error)}{note}") from None
        judge.check_analyzed(session, empty, text)
        judge.check_collation(field.dataType)
        return pa.schema([("value", to_arrow_type(field.dataType, timezone="UTC"))]).empty_table()

    type = spark.call(job, poll).schema.field(0).type
    lt = logical_types.from_arrow(type)
    if lt is None or (not lt.orderable and lt.kind is not Kind.JSON):
        raise InvalidArgument(f"engine_expression_key: {lt or type} has no scalar statistics")
    return lt


def _read(payload: bytes, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Reads the rows of the tasks of a payload, in the given schema, with structs rebuilt from their leaves."""
    planned, paths = pickle.loads(payload)  # noqa: S301  pickled by our driver
    for task in planned:
        if not paths:
            reader = tasks.open_task(task)
            rows = reader.rows
            reader.close()
            yield pa.RecordBatch.from_arrays([pa.nulls(rows, pa.bool_())], schema=schema)
            continue
        read = {}
        for column, values in tasks.read(task, [column for column in task.columns if column.column_id in paths]):
            read[paths[column.column_id]] = column, values
        try:
            arrays = [_assembled((field.name,), field.type, read) for field in schema]
        except pa.ArrowInvalid as error:
            raise InvalidArgument(f'file "{task.file_path}": {error}') from None
        yield from pa.Table.from_arrays(arrays, schema=schema).to_batches(_BATCH_ROWS)


def _summary(values: list[pa.Array], kind: str, wanted: SketchSelection) -> pa.RecordBatch:
    lt = logical_types.parse(kind)
    column = pa.chunked_array(values) if values else pa.chunked_array([], pa.null())
    return to_batch([Answer(0, 0, partial=kernels.summarise(column, lt, wanted))])


def _decoded(values: pa.ChunkedArray) -> pa.ChunkedArray:
    values = plain(values)
    return values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values


def _for_spark(column: ScanColumn, values: pa.ChunkedArray, type: pa.DataType) -> pa.ChunkedArray:
    values, lt = _decoded(values), logical_types.parse(column.logical_type)
    if lt.kind is Kind.UUID:
        return pa.chunked_array([bounds.encode_array(chunk, lt) for chunk in values.chunks], pa.string())
    try:
        return values.cast(type)
    except pa.ArrowInvalid as error:  # nanoseconds, or an integer that is wider than in other files
        raise pa.ArrowInvalid(f'column "{column.name}" cannot be {type}, as Spark has it: {error}') from None


def _assembled(
    path: tuple[str, ...], type: pa.DataType, read: Mapping[tuple[str, ...], tuple[ScanColumn, pa.ChunkedArray]]
) -> pa.Array:
    if not pa.types.is_struct(type):
        return _for_spark(*read[path], type).combine_chunks()
    children = [_assembled((*path, field.name), field.type, read) for field in type]
    null = pc.is_null(read[path][1]).combine_chunks() if path in read else None
    return pa.StructArray.from_arrays(children, fields=list(type), mask=null)
