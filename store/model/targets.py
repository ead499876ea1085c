"""Targets of statistics: a table, column, file, expression or group of columns, and its storage id."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from store.model.errors import InvalidArgument, InvalidField

SEP = b"\x1f"
MAX_ID = 2**63 - 1
NO_COLUMN: Final = "no column with id"
"""Words of the detail of an outcome about a column that the snapshot does not have."""


class TargetKind(StrEnum):
    """Kinds of targets."""

    TABLE = "TABLE"
    COLUMN = "COLUMN"
    FILE = "FILE"
    EXPRESSION = "EXPRESSION"
    COLUMN_GROUP = "COLUMN_GROUP"


KEY_IN_BASE64 = "engine_expression_key_base64"
"""JSON field for an expression key that is not UTF-8; `engine_expression_key` is text."""

FIELDS: dict[TargetKind, frozenset[str]] = {
    TargetKind.TABLE: frozenset(),
    TargetKind.COLUMN: frozenset({"column_id"}),
    TargetKind.FILE: frozenset({"file_path"}),
    TargetKind.EXPRESSION: frozenset({"engine_kind", "engine_expression_key", "engine_version"}),
    TargetKind.COLUMN_GROUP: frozenset({"column_ids"}),
}
_KEYS: Final = {kind: fields | {"kind"} for kind, fields in FIELDS.items()}
_REQUIRED: Final = {kind: sorted(fields - {"engine_version"}) for kind, fields in FIELDS.items()}


@dataclass(frozen=True, slots=True)
class Target:
    """One target in normal form; build it with the class methods or `parse`, which validate."""

    kind: TargetKind
    column_id: int | None = None
    file_path: str | None = None
    engine_kind: str | None = None
    engine_expression_key: bytes | None = None
    engine_version: str | None = None  # not part of the identity
    column_ids: tuple[int, ...] = ()

    @classmethod
    def table(cls) -> Target:
        """The target of a whole table."""
        return cls(TargetKind.TABLE)

    @classmethod
    def column(cls, column_id: int) -> Target:
        """The target of a column.

        Raises:
            InvalidField: The id is not a positive integer.
        """
        return cls(TargetKind.COLUMN, column_id=_positive("column_id", column_id))

    @classmethod
    def file(cls, file_path: str) -> Target:
        """The target of a file.

        Raises:
            InvalidField: The path is blank.
        """
        if not isinstance(file_path, str) or not file_path.strip():
            raise InvalidField("file_path", "is blank", expected="the path of a file", actual=file_path)
        return cls(TargetKind.FILE, file_path=file_path.strip())

    @classmethod
    def expression(cls, engine_kind: str, key: bytes, engine_version: str | None = None) -> Target:
        """The target of an expression.

        Args:
            engine_kind: Name of the engine, case-insensitive.
            key: The expression in the engine's own form.
            engine_version: Version of the engine, not part of the identity; None if unknown.

        Raises:
            InvalidField: The engine's name or the key is empty.
        """
        if not isinstance(engine_kind, str) or not engine_kind.strip():
            raise InvalidField("engine_kind", "is blank", expected="an engine such as spark", actual=engine_kind)
        if not key:
            raise InvalidField("engine_expression_key", "is empty", expected="the expression's key", actual="")
        return cls(
            TargetKind.EXPRESSION,
            engine_kind=engine_kind.strip().lower(),
            engine_expression_key=key,
            engine_version=engine_version,
        )

    @classmethod
    def column_group(cls, column_ids: list[int] | tuple[int, ...]) -> Target:
        """The target of several columns together, in any order.

        Raises:
            InvalidField: There are fewer than two ids, or one occurs twice.
        """
        ids = sorted(_positive("column_ids", i) for i in column_ids)
        if len(ids) < 2:
            raise InvalidField("column_ids", "has too few columns", expected="at least 2", actual=list(column_ids))
        if len(set(ids)) < len(ids):
            raise InvalidField("column_ids", "has a column twice", expected="distinct ids", actual=list(column_ids))
        return cls(TargetKind.COLUMN_GROUP, column_ids=tuple(ids))

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Target:
        """The target of a JSON object `{"kind": …, …}`.

        Raises:
            InvalidArgument: An unknown kind or key, or an invalid value.
        """
        if not isinstance(body, Mapping):
            raise InvalidField("target", "must be an object", expected='{"kind": "TABLE"}', actual=body)
        try:
            kind = TargetKind(str(body.get("kind")))
        except ValueError:
            raise InvalidField(
                "target.kind", "unknown kind", expected=" | ".join(TargetKind), actual=body.get("kind")
            ) from None
        body = _with_key(body) if kind is TargetKind.EXPRESSION else body
        if unknown := body.keys() - _KEYS[kind]:
            raise InvalidArgument(f"target {kind} has no field {sorted(unknown)}; it takes {sorted(FIELDS[kind])}")
        for name in _REQUIRED[kind]:
            if body.get(name) is None:
                raise InvalidField(f"target.{name}", f"missing for a {kind} target", expected=name, actual=dict(body))
        if kind is TargetKind.COLUMN:
            return cls.column(body["column_id"])
        if kind is TargetKind.FILE:
            return cls.file(body["file_path"])
        if kind is TargetKind.EXPRESSION:
            key, version = body["engine_expression_key"], body.get("engine_version")
            if not isinstance(key, str | bytes) or not isinstance(version, str | None):
                raise InvalidField("engine_expression_key", "must be a string", expected="text", actual=key)
            return cls.expression(body["engine_kind"], key.encode() if isinstance(key, str) else key, version)
        if kind is TargetKind.COLUMN_GROUP:
            if not isinstance(body["column_ids"], list):
                raise InvalidField("column_ids", "must be a list", expected="[1, 2]", actual=body["column_ids"])
            return cls.column_group(body["column_ids"])
        return cls.table()

    @property
    def storage_id(self) -> str:
        """The identity of the target within a snapshot; sorted as text, columns are in numeric order."""
        match self.kind:
            case TargetKind.TABLE:
                return "table"
            case TargetKind.COLUMN:
                return f"column-{self.column_id:019d}"
            case TargetKind.FILE:
                assert self.file_path is not None
                return f"file-{_digest(b'F', self.file_path.encode('utf-8', 'surrogatepass'))}"
            case TargetKind.EXPRESSION:
                assert self.engine_kind is not None and self.engine_expression_key is not None
                key = _digest(b"E", self.engine_kind.encode(), self.engine_expression_key)
                return f"expression-{self.engine_kind}-{key}"
            case TargetKind.COLUMN_GROUP:
                return f"composite-{_digest(b'X', *(str(i).encode() for i in self.column_ids))}"

    def to_json(self) -> dict[str, Any]:
        """The JSON object that `parse` reads back."""
        body: dict[str, Any] = {"kind": str(self.kind)}
        for name in sorted(FIELDS[self.kind]):
            value = getattr(self, name)
            if isinstance(value, bytes):
                try:
                    value = value.decode()
                except UnicodeDecodeError:
                    name, value = KEY_IN_BASE64, base64.b64encode(value).decode()
            if value is not None:
                body[name] = list(value) if isinstance(value, tuple) else value
        return body


def _with_key(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object with an expression key in base64 replaced by its bytes."""
    if body.get(KEY_IN_BASE64) is None:
        return body
    if body.get("engine_expression_key") is not None:
        raise InvalidField(
            f"target.{KEY_IN_BASE64}", "the key is given twice", expected="one of the two forms", actual=dict(body)
        )
    text = body[KEY_IN_BASE64]
    try:
        key = base64.b64decode(text, validate=True)
    except (ValueError, TypeError):
        raise InvalidField(f"target.{KEY_IN_BASE64}", "is not base64", expected="base64", actual=text) from None
    rest = {name: value for name, value in body.items() if name != KEY_IN_BASE64}
    return rest | {"engine_expression_key": key}


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(SEP.join(parts)).hexdigest()


def _positive(field: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidField(field, "must be an integer", expected="a positive 63-bit integer", actual=value)
    if not 0 < value <= MAX_ID:
        raise InvalidField(field, "is not positive", expected="a positive 63-bit integer", actual=value)
    return value
