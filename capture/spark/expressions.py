"""Statistics of a Spark SQL expression on the columns of a table.

Rows are read as for other statistics (deletes applied, columns mapped, constants filled in), with only the columns that
the expression may refer to. Spark evaluates the expression, and the kernels aggregate its values.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from capture.compute import kernels
from capture.compute.file_scan import PARTIAL_SCHEMA, Answer, from_batch, to_batch
from capture.compute.partial import Partial, SketchSelection
from capture.compute.pieces import Pieces
from capture.compute.readers import tasks
from capture.connectors.column_values import plain
from capture.connectors.spi import ScanTask
from capture.spark.job import balanced
from capture.spark.session import Spark, ddl
from store.model import bounds, logical_types
from store.model.errors import InvalidArgument, first_line
from store.model.logical_types import Kind, LogicalType

_BATCH_ROWS: Final = 1 << 16
_SPARK_TYPES: Final = {
    Kind.BOOLEAN: "boolean", Kind.INT: "bigint", Kind.FLOAT: "float", Kind.DOUBLE: "double", Kind.STRING: "string",
    Kind.JSON: "string", Kind.UUID: "string", Kind.BINARY: "binary", Kind.DATE: "date",
    Kind.TIMESTAMP: "timestamp_ntz", Kind.TIMESTAMPTZ: "timestamp",
}  # fmt: skip
# Expressions come from clients: they may use the row only, not read other data or call Java methods.
_REFUSED: Final = (
    (re.compile(r"/\*|--|;"), "comments and semicolons are not allowed"),
    (re.compile(r"\(\s*(select|from|table|values|with|map|reduce|describe)\s", re.I), "a subquery is not allowed"),
    (re.compile(r"\b(try_)?(reflect|java_method)\b", re.I), "calls of Java methods are not allowed"),
)


# Used with Spark Connect, which does not expose the analyzed plan.
_CURRENT: Final = re.compile(
    r"\b(current_(timestamp|date|time|user|database|schema|catalog)|localtimestamp|now|curdate|session_user)\b", re.I
)


class NotDeterministic(InvalidArgument):
    """An expression whose value is not a function of its row."""

    code = "NOT_DETERMINISTIC"


def checked(key: bytes) -> str:
    """Decodes a client's expression, and rejects one that reads other data or calls Java methods.

    Raises:
        InvalidArgument: The text is not valid UTF-8, or contains something that is not allowed.
    """
    try:
        text = key.decode()
    except UnicodeDecodeError:
        raise InvalidArgument("engine_expression_key: is not the UTF-8 text of a Spark SQL expression") from None
    for pattern, why in _REFUSED:
        if pattern.search(text):
            raise InvalidArgument(f"engine_expression_key: {why}")
    return text


def named(text: str, types: dict[str, LogicalType]) -> dict[str, LogicalType]:
    """The leaf columns that an expression may refer to, for all words of their names are in it; maybe too many."""
    words = {word.lower() for word in re.findall(r"\w+", text)}
    return {
        name: lt
        for name, lt in types.items()
        if _spark_type(lt) and all(word.lower() in words for word in re.findall(r"\w+", name))
    }


def capture(
    spark: Spark,
    planned: Sequence[ScanTask],
    text: str,
    types: dict[str, LogicalType],
    wanted: SketchSelection,
    poll: Callable[[], None],
) -> tuple[LogicalType, Partial, int]:
    """The logical type of an expression, its statistics over all files, and the bytes read.

    Args:
        planned: The files, with at least the columns of `types`.
        types: Dotted name → type, for the columns it may refer to.
        poll: Callback as in `Spark.run`.

    Raises:
        NotDeterministic: The value of the expression is not a function of its row.
        InvalidArgument: Spark does not understand the expression, or its values have no scalar statistics.
        UpstreamError: A file cannot be read, or Spark failed.
    """
    columns = _nested(types)
    lt = _result_type(spark, columns, text, poll)
    pieces = Pieces(enumerate(planned)).tasks if len(planned) < 3 * spark.cores else list(enumerate(planned))
    groups = balanced(pieces, 3 * spark.cores) or [[]]
    payloads = [pickle.dumps(([task for _, task in group], sorted(types))) for group in groups]
    kind, arrow = lt.text, _arrow_schema(columns)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _read(payloads[number], arrow)

    def summarise(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        values = [batch.column(0) for batch in batches]
        yield _summary(values, kind, wanted)

    def job(session: Any) -> pa.Table:
        from pyspark.sql import functions

        rows = session.range(0, len(payloads), 1, len(payloads)).mapInArrow(read, _columns_ddl(columns))
        values = rows.select(functions.expr(text).alias("value"))
        return values.mapInArrow(summarise, ddl(PARTIAL_SCHEMA)).toArrow().cast(PARTIAL_SCHEMA)

    answers = from_batch(spark.call(job, poll))
    size = sum(task.size_bytes for task in planned) if types else 0  # where no column is read, nothing is
    return lt, kernels.merge([answer.partial for answer in answers if answer.partial], lt), size


def _result_type(spark: Spark, columns: dict[str, Any], text: str, poll: Callable[[], None]) -> LogicalType:
    def job(session: Any) -> pa.Table:
        from pyspark.errors import AnalysisException, ParseException
        from pyspark.sql import functions
        from pyspark.sql.pandas.types import to_arrow_type

        empty = session.createDataFrame([], _columns_ddl(columns))
        try:
            # A condition rejects aggregates, windows and generators, which are not functions of one row.
            _ = empty.where(functions.expr(f"({text}) IS NULL")).schema
            (field,) = empty.select(functions.expr(text).alias("value")).schema.fields
        except (AnalysisException, ParseException, ValueError) as error:
            raise InvalidArgument(f"engine_expression_key: Spark says {first_line(error)}") from None
        _check_deterministic(session, empty, text)
        return pa.schema([("value", to_arrow_type(field.dataType, timezone="UTC"))]).empty_table()

    type = spark.call(job, poll).schema.field(0).type
    lt = logical_types.from_arrow(type)
    if lt is None or (not lt.orderable and lt.kind is not Kind.JSON):
        raise InvalidArgument(f"engine_expression_key: {lt or type} has no scalar statistics")
    return lt


def _check_deterministic(session: Any, empty: Any, text: str) -> None:
    """Raises NotDeterministic unless the value depends on the row only, not on chance, current time or user."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions

    value = functions.expr(text)
    if hasattr(session, "_jvm"):
        plan = empty.select(value.alias("value"))._jdf.queryExecution().analyzed()
        current = session._jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
        varies = not plan.expressions().head().deterministic() or plan.containsPattern(current)
    else:
        try:  # an aggregate function rejects arguments that are not deterministic
            _ = empty.select(functions.count(value)).schema
            varies = _CURRENT.search(text) is not None
        except AnalysisException:
            varies = True
    if varies:
        raise NotDeterministic(f'the value of "{text}" is not a function of its row: each capture would differ')


def _read(payload: bytes, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Reads the rows of the tasks of a payload, in the given schema, with structs rebuilt from their leaves."""
    planned, names = pickle.loads(payload)  # noqa: S301  pickled by our driver
    for task in planned:
        if not names:
            reader = tasks.open_task(task)
            rows = reader.rows
            reader.close()
            yield pa.RecordBatch.from_arrays([pa.nulls(rows, pa.bool_())], schema=schema)
            continue
        columns_read = {}
        for column, values in tasks.read(task, [column for column in task.columns if column.name in names]):
            columns_read[column.name] = _for_spark(values, logical_types.parse(column.logical_type))
        arrays = [_assembled(field.name, field.type, columns_read) for field in schema]
        yield from pa.Table.from_arrays(arrays, schema=schema).to_batches(_BATCH_ROWS)


def _summary(values: list[pa.Array], kind: str, wanted: SketchSelection) -> pa.RecordBatch:
    lt = logical_types.parse(kind)
    column = pa.chunked_array(values) if values else pa.chunked_array([], pa.null())
    return to_batch([Answer(0, 0, partial=kernels.summarise(column, lt, wanted))])


def _for_spark(values: pa.ChunkedArray, lt: LogicalType) -> pa.ChunkedArray:
    values = plain(values)
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if lt.kind is Kind.UUID:
        return pa.chunked_array([bounds.encode_array(chunk, lt) for chunk in values.chunks], pa.string())
    if pa.types.is_timestamp(values.type) and values.type.unit == "ns":
        values = values.cast(pa.timestamp("us", values.type.tz), safe=False)
    return values.cast(_arrow_type(lt))


def _assembled(path: str, type: pa.DataType, columns_read: dict[str, pa.ChunkedArray]) -> pa.Array:
    if not pa.types.is_struct(type):
        return columns_read[path].combine_chunks()
    children = [_assembled(f"{path}.{field.name}", field.type, columns_read) for field in type]
    return pa.StructArray.from_arrays(children, fields=list(type))


def _nested(types: dict[str, LogicalType]) -> dict[str, Any]:
    """Converts dotted names to a tree, with a dict for each struct."""
    tree: dict[str, Any] = {}
    for name, lt in types.items():
        *parents, leaf = name.split(".")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
        place[leaf] = lt
    return tree


def _columns_ddl(columns: dict[str, Any]) -> str:
    def of(node: Any) -> str:
        if isinstance(node, dict):
            return f"struct<{', '.join(f'`{_quoted(name)}`: {of(below)}' for name, below in node.items())}>"
        return _spark_type(node)

    return ", ".join(f"`{_quoted(name)}` {of(node)}" for name, node in columns.items()) or "`_` boolean"


def _quoted(name: str) -> str:
    return name.replace("`", "``")


def _arrow_schema(columns: dict[str, Any]) -> pa.Schema:
    def of(node: Any) -> pa.DataType:
        if isinstance(node, dict):
            return pa.struct([(name, of(below)) for name, below in node.items()])
        return _arrow_type(node)

    return pa.schema([(name, of(node)) for name, node in columns.items()] or [("_", pa.bool_())])


def _arrow_type(lt: LogicalType) -> pa.DataType:
    return pa.string() if lt.kind is Kind.UUID else logical_types.to_arrow(lt)


def _spark_type(lt: LogicalType) -> str:
    """Name of the Spark type; empty if there is none."""
    if lt.kind is Kind.DECIMAL:
        return f"decimal({lt.precision},{lt.scale})" if (lt.precision or 0) <= 38 else ""
    return _SPARK_TYPES.get(lt.kind, "")
