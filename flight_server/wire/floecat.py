"""Translation of Floecat's protobuf command for reading a system table to the equivalent JSON command.

The messages are declared here and built by the protobuf runtime, without generated code. Only the fields that a read
needs are declared; others are ignored.

    SystemTableFlightCommand  1 target: SystemTableTarget · 2 required_columns: string*
                              3 predicates: Predicate* · 4 query_id: string
    SystemTableTarget         one of 1 name: NameRef · 2 id: ResourceId
    NameRef                   1 catalog: string · 2 path: string* · 3 name: string
    ResourceId                1 account_id: string · 2 id: string
    Predicate                 1 column: string · 2 op: Operator · 3 values: string*

Names work as in Floecat: case-insensitive, the catalog is ignored, and the schema may be in `path` or in `name`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from store.model.errors import InvalidArgument, InvalidField, Words
from store.model.predicates.tree import MAX_NODES, Op

_SYSTEM: Final = "ai.floedb.floecat.system"
_COMMON: Final = "ai.floedb.floecat.common"
_MESSAGES: Final[dict[str, dict[str, dict[str, tuple[int, str]]]]] = {
    # package → message → field → number and type; "*" repeats, "?" is one of several
    _COMMON: {
        "ResourceId": {"account_id": (1, "string"), "id": (2, "string")},
        "NameRef": {"catalog": (1, "string"), "path": (2, "string*"), "name": (3, "string")},
        "Predicate": {"column": (1, "string"), "op": (2, f"enum {_COMMON}.Operator"), "values": (3, "string*")},
    },
    _SYSTEM: {
        "SystemTableTarget": {"name": (1, f"{_COMMON}.NameRef?"), "id": (2, f"{_COMMON}.ResourceId?")},
        "SystemTableFlightCommand": {
            "target": (1, f"{_SYSTEM}.SystemTableTarget"),
            "required_columns": (2, "string*"),
            "predicates": (3, f"{_COMMON}.Predicate*"),
            "query_id": (4, "string"),
        },
    },
}
# in the order of the enum's numbers
_OPERATORS: Final = (
    Op.EQ, Op.NEQ, Op.LT, Op.LTE, Op.GT, Op.GTE, Op.BETWEEN, Op.IN, Op.IS_NULL, Op.IS_NOT_NULL,
)  # fmt: skip


def _files() -> Iterator[descriptor_pb2.FileDescriptorProto]:
    for package, messages in _MESSAGES.items():
        file = descriptor_pb2.FileDescriptorProto(name=f"statflight/{package}.proto", package=package, syntax="proto3")
        if package == _COMMON:
            operator = file.enum_type.add(name="Operator")
            for number, op in enumerate(_OPERATORS):
                operator.value.add(name=f"OP_{op}", number=number)
        else:
            file.dependency.append(f"statflight/{_COMMON}.proto")
        for name, fields in messages.items():
            message = file.message_type.add(name=name)
            for field, (number, declared) in fields.items():
                _add_field(message, field, number, declared)
        yield file


def _add_field(message: Any, name: str, number: int, declared: str) -> None:
    kind = descriptor_pb2.FieldDescriptorProto
    field = message.field.add(name=name, number=number, label=kind.LABEL_OPTIONAL, type=kind.TYPE_STRING)
    if declared.endswith("*"):
        field.label = kind.LABEL_REPEATED
    elif declared.endswith("?"):
        if not message.oneof_decl:
            message.oneof_decl.add(name="ref")
        field.oneof_index = 0
    word, _, of_enum = declared.rstrip("*?").rpartition(" ")
    if word == "enum":
        field.type, field.type_name = kind.TYPE_ENUM, f".{of_enum}"
    elif of_enum != "string":
        field.type, field.type_name = kind.TYPE_MESSAGE, f".{of_enum}"


def _command_class() -> Any:
    pool = descriptor_pool.DescriptorPool()  # separate, to avoid conflicts with generated code
    for file in _files():
        pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_SYSTEM}.SystemTableFlightCommand"))


SystemTableFlightCommand: Final = _command_class()


def to_command(data: bytes, header_query_id: str | None) -> dict[str, Any]:
    """The JSON command of a serialized message.

    Args:
        data: The message.
        header_query_id: Value of the header x-query-id; None without one.

    Raises:
        InvalidArgument: The message is malformed, or lacks a target or query id, or has an unknown operator.
    """
    try:
        message = SystemTableFlightCommand.FromString(bytes(data))
    except DecodeError:
        raise InvalidArgument(
            "the command is neither JSON nor a SystemTableFlightCommand", hint='such as {"table": "stats.columns"}'
        ) from None
    command: dict[str, Any] = {
        "table": _table(message),
        "columns": list(message.required_columns),
        "query_id": _query_id(message.query_id, header_query_id),
    }
    if len(message.predicates) > MAX_NODES:
        raise InvalidArgument(f"predicates: more than {MAX_NODES} conditions", hint="use IN for many values")
    if message.predicates:
        command["predicates"] = [_predicate(item, at) for at, item in enumerate(message.predicates)]
    return command


def _table(message: Any) -> str:
    match message.target.WhichOneof("ref"):
        case "name":
            ref = message.target.name
            name = ".".join([*ref.path, ref.name.strip()]).lower()
            if ref.name.strip():
                return name
            raise InvalidField("target.name", "names no table", expected="path and name", actual=name)
        case "id":
            raise InvalidField(
                "target",
                "is an id, and system tables have none here",
                expected="target.name",
                actual=message.target.id.id,
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


def _predicate(item: Any, at: int) -> dict[str, Any]:
    if not 0 <= item.op < len(_OPERATORS):
        raise InvalidField(f"predicates[{at}].op", "is unknown", expected=f"0 to {len(_OPERATORS) - 1}", actual=item.op)
    return {"column": item.column, "op": str(_OPERATORS[item.op]), "values": list(item.values)}
