"""Predicate trees as DuckDB conditions with parameters; `tree` defines their meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from store.model.logical_types import Kind
from store.model.predicates.bounds import KEYS, TYPE_COLUMN, SortKey, kind_sql
from store.model.predicates.literals import is_binary
from store.model.predicates.tree import (
    COMPARES,
    And,
    Node,
    Not,
    Op,
    Or,
    ResolvedLeaf,
    fields_of,
    resolve,
    resolve_bound,
)

_LISTED: Final = 64  # most members of an IN with a parameter each; more become a single list parameter
_UNKNOWN_SQL: Final = "CAST(NULL AS BOOLEAN)"


def to_sql(node: Node, schema: pa.Schema, column_sql: Callable[[str], str]) -> tuple[str, list[Any]]:
    """A DuckDB condition and its parameters, in the order of their `?`.

    Args:
        schema: The available columns, whose types determine how literals are read.
        column_sql: Column name of the schema → trusted SQL; text of the predicate never becomes SQL.
    """
    parameters: list[Any] = []
    return _sql(node, fields_of(schema), column_sql, parameters), parameters


def _sql(node: Node, fields: Mapping[str, pa.Field], column_sql: Callable[[str], str], parameters: list[Any]) -> str:
    match node:
        case And(children) | Or(children):
            word, empty = (" AND ", "TRUE") if isinstance(node, And) else (" OR ", "FALSE")
            return f"({word.join(_sql(child, fields, column_sql, parameters) for child in children) or empty})"
        case Not(child):
            return f"(NOT {_sql(child, fields, column_sql, parameters)})"
    if (by_kind := resolve_bound(node, fields)) is not None:
        return _bound_sql(by_kind, column_sql, parameters)
    leaf = resolve(node, fields)
    return _leaf_sql(leaf, column_sql(leaf.field.name), parameters) if leaf else _UNKNOWN_SQL


def _bound_sql(by_kind: Mapping[Kind, ResolvedLeaf], column_sql: Callable[[str], str], parameters: list[Any]) -> str:
    type_sql = column_sql(TYPE_COLUMN)
    cases = [
        f"WHEN {kind_sql(kind, type_sql)} THEN {key_sql(leaf, KEYS[kind], column_sql(leaf.field.name), parameters)}"
        for kind, leaf in by_kind.items()
    ]
    return f"(CASE {' '.join(cases)} END)" if cases else _UNKNOWN_SQL


_IF_LESS: Final = frozenset({Op.NEQ, Op.LT, Op.LTE})
_IF_GREATER: Final = frozenset({Op.NEQ, Op.GT, Op.GTE})


def key_sql(leaf: ResolvedLeaf, key: SortKey, text: str, parameters: list[Any]) -> str:
    """A DuckDB condition on the bounds of one kind.

    Args:
        text: SQL of the bounds' text.
        parameters: Gets the parameters, in the order of their `?`.
    """
    if leaf.op is Op.BETWEEN and key.coarse_sql:
        sides = zip((Op.GTE, Op.LTE), leaf.values, strict=True)
        terms = [key_sql(replace(leaf, op=op, values=(value,)), key, text, parameters) for op, value in sides]
        return f"({' AND '.join(terms)})"
    if leaf.op not in COMPARES or not key.coarse_sql or leaf.is_always:
        return _leaf_sql(leaf, key.sql.format(text), parameters)
    # The exact comparison is left to the rows that the coarse one does not decide.
    coarse, (low, high) = key.coarse_sql.format(text), key.coarse(leaf.values[0])
    type_sql = "DOUBLE" if isinstance(low, float) else "VARCHAR"
    parameters += [low, high]
    exact = _leaf_sql(leaf, key.sql.format(text), parameters)
    return (
        f"(CASE WHEN {coarse} < ?::{type_sql} THEN {leaf.op in _IF_LESS} WHEN {coarse} > ?::{type_sql}"
        f" THEN {leaf.op in _IF_GREATER} ELSE {exact} END)"
    )


def _leaf_sql(leaf: ResolvedLeaf, column: str, parameters: list[Any]) -> str:
    if leaf.op is Op.IS_NULL:
        return f"({column} IS NULL)"
    if leaf.op is Op.IS_NOT_NULL:
        return f"({column} IS NOT NULL)"
    if leaf.op is Op.IN:
        return _in_sql(leaf, column, parameters)
    if any(value != value for value in leaf.values):
        return _if_present(column, leaf.op is Op.NEQ)
    cast = _parameter_sql(leaf.field.type)
    parameters.extend(leaf.values)
    if leaf.op is Op.BETWEEN:
        return f"({column} BETWEEN {cast} AND {cast})"
    compared = f"{column} {COMPARES[leaf.op]} {cast}"
    if leaf.op in (Op.GT, Op.GTE) and pa.types.is_floating(leaf.field.type):
        return f"({compared} AND NOT isnan({column}))"  # DuckDB orders NaN above every number
    return f"({compared})"


def _in_sql(leaf: ResolvedLeaf, column: str, parameters: list[Any]) -> str:
    if not leaf.values:
        contained = _if_present(column, False)
    elif len(leaf.values) <= _LISTED:
        cast = _parameter_sql(leaf.field.type)
        parameters.extend(leaf.values)
        contained = f"({column} IN ({', '.join([cast] * len(leaf.values))}))"
    else:
        parameters.append(list(leaf.values))
        contained = f"({column} IN (SELECT {list_sql(leaf.field.type)}))"
    return f"({contained} OR {_UNKNOWN_SQL})" if leaf.unread else contained


def _if_present(column: str, truth: bool) -> str:
    """A constant that is unknown if the column is null."""
    return f"(CASE WHEN {column} IS NOT NULL THEN {'TRUE' if truth else 'FALSE'} END)"


def _sql_type(type: pa.DataType) -> str:
    if pa.types.is_integer(type):
        return "BIGINT" if type.bit_width <= 32 or pa.types.is_signed_integer(type) else "UBIGINT"
    if pa.types.is_floating(type):
        return "DOUBLE"
    if pa.types.is_boolean(type):
        return "BOOLEAN"
    if pa.types.is_timestamp(type):
        return "BIGINT"
    return "BLOB" if is_binary(type) else "VARCHAR"


def _parameter_sql(type: pa.DataType) -> str:
    if pa.types.is_timestamp(type):
        return "make_timestamptz(?::BIGINT)"
    return f"?::{'INTEGER' if type == pa.int32() else _sql_type(type)}"


def list_sql(type: pa.DataType) -> str:
    """SQL of the members of a list parameter with values of a type, a row for each."""
    members = f"unnest(?::{_sql_type(type)}[])"
    return f"make_timestamptz({members})" if pa.types.is_timestamp(type) else members
