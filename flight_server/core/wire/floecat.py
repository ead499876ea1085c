"""Translation of Floecat's protobuf command for reading a system table to the equivalent JSON command.

Fields that are not listed here are ignored.

    SystemTableFlightCommand  1 target: SystemTableTarget · 2 required_columns: string*
                              3 predicates: Predicate* · 4 query_id: string
    SystemTableTarget         one of 1 name: NameRef · 2 id: ResourceId
    NameRef                   1 catalog: string · 2 path: string* · 3 name: string
    ResourceId                1 account_id: string · 2 id: string
    Predicate                 1 column: string · 2 op: Operator · 3 values: string*

Names work as in Floecat: case-insensitive, the catalog is ignored, and the schema may be in `path` or in `name`.
"""

from __future__ import annotations

from typing import Any, Final

from flight_server.core.wire.protobuf import Message, read_message
from store.model.errors import InvalidArgument, InvalidField, Words
from store.model.predicates.tree import MAX_NODES, Op

# in the order of the enum's numbers
_OPERATORS: Final = (
    Op.EQ,
    Op.NEQ,
    Op.LT,
    Op.LTE,
    Op.GT,
    Op.GTE,
    Op.BETWEEN,
    Op.IN,
    Op.IS_NULL,
    Op.IS_NOT_NULL,
)


def to_command(data: bytes, header_query_id: str | None) -> dict[str, Any]:
    """The JSON command of a serialized message.

    Raises:
        InvalidArgument: The message is malformed, or lacks a target or query id, or has an unknown operator.
    """
    try:
        message = read_message("SystemTableFlightCommand", data)
        columns, predicates, query_id = message.texts(2), message.fields.get(3, ()), message.text(4) or ""
        target = read_message("SystemTableTarget", message.data(1))
    except InvalidArgument:
        raise InvalidArgument(
            "the command is neither JSON nor a SystemTableFlightCommand", hint='such as {"table": "stats.columns"}'
        ) from None
    command: dict[str, Any] = {
        "table": _table(target),
        "columns": columns,
        "query_id": _query_id(query_id, header_query_id),
    }
    if len(predicates) > MAX_NODES:
        raise InvalidArgument(f"predicates: more than {MAX_NODES} conditions", hint="use IN for many values")
    if predicates:
        command["predicates"] = [_predicate(message.nested(3, at, "Predicate"), at) for at in range(len(predicates))]
    return command


def _table(target: Message) -> str:
    """The name in a target, of which the last of its fields counts."""
    match next((number for number in reversed(target.fields) if number in (1, 2)), None):
        case 1:
            ref = target.nested(1, -1, "NameRef")
            last = (ref.text(3) or "").strip()
            name = ".".join([*ref.texts(2), last]).lower()
            if last:
                return name
            raise InvalidField("target.name", "names no table", expected="path and name", actual=name)
        case 2:
            raise InvalidField(
                "target",
                "is an id, and system tables have none here",
                expected="target.name",
                actual=target.nested(2, -1, "ResourceId").text(2),
            )
        case _:
            raise InvalidField("target", "is missing", expected="target.name", actual=Words("a command without one"))


def _query_id(own: str, header: str | None) -> str:
    given = [text for text in (own, header) if text and text.strip()]
    if not given:
        raise InvalidField(
            "query_id", "is missing", expected="one in the command or the header x-query-id", actual=Words("neither")
        )
    if len(set(given)) > 1:
        raise InvalidField("query_id", "differs from the header x-query-id", expected=header, actual=own)
    return given[0]


def _predicate(item: Message, at: int) -> dict[str, Any]:
    (number,) = item.integers(2)[-1:] or [0]
    if number >= len(_OPERATORS):
        raise InvalidField(f"predicates[{at}].op", "is unknown", expected=f"0 to {len(_OPERATORS) - 1}", actual=number)
    return {"column": item.text(1) or "", "op": str(_OPERATORS[number]), "values": item.texts(3)}
