"""Types of a statement's parameters, inferred from the columns they are compared or combined with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
from sqlglot import exp

from flight_server.faces.sql.flights import NAIVE, Table, naive

_TYPES: Final = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int64(),
    "SMALLINT": pa.int64(),
    "INT": pa.int64(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float64(),
    "DOUBLE": pa.float64(),
    "DECIMAL": pa.float64(),
    "DATE": pa.date32(),
    "TIMESTAMP": NAIVE,
    "TIMESTAMPNTZ": NAIVE,
    "TIMESTAMPTZ": NAIVE,
    "DATETIME": NAIVE,
    "VARBINARY": pa.binary(),
}
_OPERATIONS: Final = (exp.Paren, exp.Tuple, exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod)
_COMPARISONS: Final = (exp.Binary, exp.Between, exp.In)

TEXT: Final = pa.string()  # of a parameter that may be anything
CANDIDATES: Final = (TEXT, pa.int64(), pa.int32(), pa.float64(), NAIVE, pa.date32(), pa.bool_())
"""Types of a parameter of which the text says nothing, in the order in which they are tried."""


def find(placeholders: Sequence[exp.Placeholder], tables: Sequence[Table]) -> list[pa.DataType | None]:
    """The types of placeholders, numbered from 1: that of a cast, of the column compared with, or a number in
    arithmetic; None where the text says nothing, as for an argument of a function."""
    if not placeholders:
        return []
    types: dict[str, pa.DataType] = {}
    for table in tables:
        for field in naive(table.flight.schema):
            types.setdefault(field.name.lower(), field.type)
    inferred = {int(node.name): _parameter_type(node, types) for node in placeholders}
    return [inferred.get(number) for number in range(1, max(inferred, default=0) + 1)]


def _parameter_type(node: exp.Placeholder, types: Mapping[str, pa.DataType]) -> pa.DataType | None:
    """The type of a placeholder by what is around it; None where that says nothing."""
    parent: exp.Expression | None = node.parent
    arithmetic = False
    numbers: list[exp.Literal] = []
    while isinstance(parent, _OPERATIONS):
        if isinstance(parent, exp.Binary):
            arithmetic = True
            if (type_ := _column_type(parent, types)) is not None:
                return type_
            numbers += [each for each in parent.iter_expressions() if isinstance(each, exp.Literal)]
        parent = parent.parent
    if isinstance(parent, exp.Limit | exp.Offset):
        return pa.int64()
    if isinstance(parent, exp.Cast):
        return _TYPES.get(parent.to.this.name, TEXT)
    if isinstance(parent, _COMPARISONS) and (type_ := _column_type(parent, types)) is not None:
        return type_
    if arithmetic:
        return pa.int64() if numbers and all(number.is_int for number in numbers) else pa.float64()
    return None


def _column_type(node: exp.Expression, types: Mapping[str, pa.DataType]) -> pa.DataType | None:
    """The type of the first known column that an operator is applied to; None if there is none."""
    for operand in node.iter_expressions():
        if isinstance(operand, exp.Column) and (type_ := types.get(operand.name.lower())) is not None:
            return type_
    return None


def sql_name(type_: pa.DataType) -> str:
    """The DuckDB name of a type that `find` returns."""
    if pa.types.is_integer(type_):
        return "INTEGER" if type_.bit_width <= 32 else "BIGINT"
    if pa.types.is_floating(type_):
        return "DOUBLE"
    if pa.types.is_timestamp(type_):
        return "TIMESTAMP"
    named = {pa.bool_(): "BOOLEAN", pa.date32(): "DATE", pa.binary(): "BLOB"}
    return named.get(type_, "VARCHAR")
