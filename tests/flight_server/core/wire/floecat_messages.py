"""Floecat's messages, built by the protobuf runtime as its clients do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

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
_OPERATORS: Final = (
    "EQ",
    "NEQ",
    "LT",
    "LTE",
    "GT",
    "GTE",
    "BETWEEN",
    "IN",
    "IS_NULL",
    "IS_NOT_NULL",
)


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
