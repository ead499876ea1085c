"""Validation of the records of a put: casts, checks and normal form (store/SEMANTICS.md §2).

`prepare` is the entry point: its result has the flight's schema, is in normal form and breaks no rule; its errors have
field, reason, expected and actual value. It works on whole columns; Python code runs once per distinct value, not row.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store.history.casts import are_trimmed, cast, castable, json_object, like, other_type, trimmed
from store.history.decoded_sizes import decoded_bytes
from store.history.impossible import first_impossible
from store.history.put_batch import PutBatch
from store.model import bounds, logical_types, target_ids, targets
from store.model.columns import (
    CAPTURE_MODES,
    COMPLETENESS,
    COMPUTED,
    DELETE_CONTENTS,
    DELETE_FILE,
    DISTRIBUTION,
    FILE_CONTENTS,
    INSTANT,
    PRODUCERS,
    ROLES,
)
from store.model.errors import InvalidArgument, InvalidField, Words, first_line, nearest
from store.model.flight import Flight
from store.model.logical_types import Kind, LogicalType
from store.model.puts import shown
from store.model.statistics import PER_VALUE, SCALARS, SIDES, STATISTICS, Limit, exactness, names

MAX_BATCH_BYTES: Final = 1 << 30  # of a batch of a put, decompressed and decoded
_KEY: Final = ("table_catalog", "table_schema", "table_name", "snapshot_id")
# At least one of these columns is required, and each row must have a value in one of them.
_ALTERNATIVES: Final[dict[str, tuple[str, str]]] = {
    "stats.columns": ("column_id", "column_name"),
    "stats.file_columns": ("column_id", "column_name"),
    "stats.sketches": ("target_kind", "storage_id"),
}
_NOT_EMPTY: Final = ("table_catalog", "table_schema", "table_name", "engine_expression_key", "sketch_type")
_OTHER_COUNTS: Final = (
    "snapshot_id",
    "size_bytes",
    "rows_scanned",
    "files_scanned",
    "row_groups_sampled",
    "bytes_scanned",
)  # besides the statistics
_COUNTS: Final = (*_OTHER_COUNTS, *names(lambda each: each.limit is Limit.COUNT, STATISTICS))
_INSTANTS: Final = ("captured_at", "refreshed_at")
_FIRST, _LAST = (pa.scalar(each.replace(tzinfo=UTC), INSTANT) for each in (datetime.min, datetime.max))
_MEASURES: Final = names(lambda each: each.limit is Limit.MEASURE)
_NUMBERS: Final = names(lambda each: each.limit in (Limit.NUMBER, Limit.DEVIATION))
_DEVIATIONS: Final = names(lambda each: each.limit is Limit.DEVIATION)
_WORDS: Final[dict[str, tuple[str, ...]]] = {
    "producer": PRODUCERS,
    "completeness": COMPLETENESS,
    "capture_mode": CAPTURE_MODES,
    "file_content": FILE_CONTENTS,
    "role": ROLES,
    "target_kind": tuple(targets.TargetKind),
}
_AT_MOST: Final = tuple((each.name, other) for each in SCALARS for other in each.at_most)


def required(flight: Flight) -> tuple[str, ...]:
    """The columns that a put into the flight must have, without nulls."""
    if flight.name == "stats.sketches":
        return (*_KEY, "role", "sketch_type", "data")
    return (*_KEY, *(name for name in flight.identity if name not in _ALTERNATIVES.get(flight.name, ())))


def prepare(
    flight: Flight,
    batch: pa.RecordBatch | pa.Table,
    policy: bounds.ZonePolicy = bounds.REFUSE,
    *,
    first_row: int = 0,
    clamp: bool = False,
    checked: bool = False,
) -> pa.Table:
    """Validates and normalizes a batch of a put stream.

    Args:
        flight: A writable flight.
        batch: Any subset of the flight's columns that has the required ones; untrusted.
        policy: Treatment of bounds with a zone for TIMESTAMP columns.
        first_row: Number of rows of the stream before this batch; errors count rows over the stream, from 1.
        clamp: Reduce estimates of distinct values that are too large instead of refusing them; for captures.
        checked: The values are valid and normal, as those of the built-in engines; only the layout is checked.

    Returns:
        The given columns in the order and types of the flight, without the derived ones.

    Raises:
        InvalidField: A column is missing, unknown, or of another type; or a value breaks a rule.
        InvalidArgument: The flight takes no puts, or the batch is corrupt or too large.
    """
    if not flight.writable:
        raise InvalidArgument(f"{flight.name} cannot be written", code="NOT_WRITABLE")
    schema = _check_names(flight, batch.schema)
    batches = batch.to_batches() if isinstance(batch, pa.Table) else [batch]
    done = []
    for part in batches:
        try:
            part.validate(full=True)  # before any kernel: a hostile buffer would crash the process
        except pa.ArrowInvalid as error:
            raise InvalidArgument(f"{flight.name}: the batch is corrupt: {first_line(error)}") from None
        _check_size(part, schema)
        if checked:
            arrays = [cast(field.name, part.column(field.name), field.type) for field in schema]
            done.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
        elif part.num_rows:  # some Arrow kernels fail on empty arrays
            done.append(_Batch(flight, part, schema, policy, first_row, clamp).checked())
        first_row += part.num_rows
    return pa.Table.from_batches(done, schema)


def _check_size(batch: pa.RecordBatch, schema: pa.Schema) -> None:
    """Refuses a batch that would take too much memory as plain values."""
    size = batch.get_total_buffer_size()
    for field in schema:
        column = batch.column(field.name)
        if column.type != field.type:
            size += decoded_bytes(column)
    if size > MAX_BATCH_BYTES:
        raise InvalidArgument(
            f"a batch takes {size} bytes of memory; at most {MAX_BATCH_BYTES} are taken", hint="send smaller batches"
        )


def _check_known(flight: Flight, names: Sequence[str]) -> None:
    """Refuses columns that a flight does not have, or that are given twice."""
    known = flight.schema.names
    for name in names:
        if name not in known:
            error = InvalidField(name, f"{flight.name} has no such column", expected=", ".join(known), actual=name)
            error.hint = nearest(name, known)
            raise error
        if names.count(name) > 1:
            raise InvalidField(name, "the column is given twice", expected="one", actual=names.count(name))


@lru_cache(256)
def _check_names(flight: Flight, given: pa.Schema) -> pa.Schema:
    """The schema of the result; refuses columns that are unknown, duplicate, missing or of another type."""
    names, known = given.names, flight.schema.names
    _check_known(flight, names)
    for name in required(flight):
        if name not in names:
            raise InvalidField(
                name, f"the column is missing, {flight.name} requires it", expected=name, actual=Words(", ".join(names))
            )
    either = _ALTERNATIVES.get(flight.name)
    if either and not set(either) & set(names):
        raise InvalidField(
            either[0], "the column is missing", expected=" or ".join(either), actual=Words(", ".join(names))
        )
    kept = [name for name in known if name in names and name not in COMPUTED]
    for name in kept:
        if not castable(given.field(name).type, flight.schema.field(name).type):
            raise other_type(name, flight.schema.field(name).type, given.field(name).type)
    return pa.schema([flight.schema.field(name) for name in kept])


# Checks.


class _Batch(PutBatch):
    """A batch of at least one row while it is validated and normalized."""

    def __init__(
        self,
        flight: Flight,
        batch: pa.RecordBatch,
        schema: pa.Schema,
        policy: bounds.ZonePolicy,
        first_row: int,
        clamp: bool = False,
    ) -> None:
        super().__init__(batch, schema, first_row)
        self.flight = flight
        self.policy = policy
        self.clamp = clamp
        self._drop_inherited(batch)

    def checked(self) -> pa.RecordBatch:
        self._check_presence()
        self._check_numbers()
        for name, words in _WORDS.items():
            if (column := self.given(name)) is not None:
                known = pc.is_in(column, pa.array([*words, None], pa.string()))
                self.require(known, name, "is unknown", " | ".join(words))
        self.map("file_path", trimmed, "the path of a file", are_trimmed)
        self.map("engine_kind", lambda text: trimmed(text).lower(), "an engine such as spark")
        self.map("partition_data_json", json_object, "a JSON object")
        self.map("params", json_object, "a JSON object")
        if self.flight.name == "stats.column_groups":
            self._check_group()
        if self.flight.name == "stats.sketches":
            self._check_sketch()
        if self.flight.name == "stats.files":
            self._check_deletes()
        self._check_types_and_bounds()
        if bad := first_impossible(self.columns, within_bounds=not self.clamp):
            raise self.refuse(bad.row, bad.field, bad.reason, bad.expected)
        return pa.RecordBatch.from_arrays(list(self.columns.values()), schema=self.schema)

    def _drop_inherited(self, batch: pa.RecordBatch) -> None:
        """Removes distributions that were read from a server which had inherited them: they are of other rows."""
        name = "distribution_snapshot_id"
        if name in batch.schema.names:
            other = pc.not_equal(cast(name, batch.column(name), pa.int64()), self.columns["snapshot_id"])
            for group in DISTRIBUTION:
                if (column := self.given(group)) is not None:
                    self.columns[group] = pc.if_else(other.fill_null(False), pa.scalar(None, column.type), column)

    def _check_presence(self) -> None:
        for name in required(self.flight):
            if self.columns[name].null_count:
                index = pc.index(self.columns[name].is_null(), True).as_py()
                raise self.refuse(index, name, "is missing", "a value", "null")
        for name in _NOT_EMPTY:
            if (column := self.given(name)) is not None:
                self.require(pc.greater(pc.binary_length(column), 0), name, "is empty", "at least one character")
        if either := _ALTERNATIVES.get(self.flight.name):
            given = [self.columns[name] for name in either if name in self.columns]
            if all(column.null_count for column in given):
                missing = pc.index(
                    pc.coalesce(*(pc.if_else(c.is_valid(), True, None) for c in given)).is_valid(), False
                )
                if missing.as_py() >= 0:
                    raise self.refuse(missing.as_py(), either[0], "is missing", " or ".join(either), "null")

    def _check_numbers(self) -> None:
        for name in _COUNTS:
            if (column := self.given(name)) is not None and pc.min(column).as_py() < 0:
                self.require(pc.greater_equal(column, 0), name, "is negative", "at least 0")
        for name in _MEASURES:
            if (column := self.given(name)) is not None:
                fine = pc.and_(pc.is_finite(column), pc.greater_equal(column, 0.0))
                self.require(fine, name, "must not be negative or infinite", "a finite number of at least 0")
        if (column := self.given("confidence_level")) is not None:
            fine = pc.and_(pc.greater_equal(column, 0.0), pc.less_equal(column, 1.0))
            self.require(fine, "confidence_level", "is out of range", "a number from 0 to 1")
        if (column := self.given("column_id")) is not None and pc.min(column).as_py() <= 0:
            self.require(pc.greater(column, 0), "column_id", "is not positive", "a positive 63-bit integer")
        self._check_instants()
        self._check_order()
        self._check_possible()
        for name in _NUMBERS:
            if (column := self.given(name)) is not None:
                self.require(pc.invert(pc.is_nan(column)), name, "is NaN", "a number, or null where it is unknown")
        for name in _DEVIATIONS:
            if (column := self.given(name)) is not None:
                self.require(pc.greater_equal(column, 0.0), name, "is negative", "at least 0")

    def _check_instants(self) -> None:
        """Refuses instants that Python does not have."""
        for name in _INSTANTS:
            if (column := self.given(name)) is None:
                continue
            fine = pc.and_(pc.greater_equal(column, _FIRST), pc.less_equal(column, _LAST))
            if (index := pc.index(fine, False).as_py()) >= 0:
                actual = Words(f"{column.cast(pa.int64())[index]} microseconds since 1970")
                raise self.refuse(index, name, "is out of range", "an instant of the years 1 to 9999", actual)

    def _check_order(self) -> None:
        """Refuses statistics that exceed one that they must not."""
        for name, limit in _AT_MOST:
            column, most = self.given(name), self.given(limit)
            if column is None or most is None:
                continue
            fine = pc.less_equal(column, like(most, column))
            if not pc.all(fine, min_count=0).as_py():
                index = pc.index(fine, False).as_py()
                raise self.refuse(index, name, f"is above {limit}", f"at most {limit} {most[index].as_py()}")

    def _check_possible(self) -> None:
        """Checks counts of values and of distinct values against the number of rows."""
        rows = self.given("row_count")
        if rows is None:
            return
        nulls = self.columns.get("null_count")
        values = rows if nulls is None else pc.subtract(rows, pc.fill_null(nulls, 0))
        if (nans := self.given("nan_count")) is not None:
            self.require(
                pc.less_equal(nans, values),
                "nan_count",
                "is above row_count - null_count",
                "null_count and nan_count together at most row_count",
            )
        for name in PER_VALUE:
            if (column := self.given(name)) is None:
                continue
            most = like(values, column)
            if self.clamp:
                self.columns[name] = pc.if_else(pc.greater(column, most).fill_null(False), most, column)
            else:
                self.require(
                    pc.less_equal(column, most),
                    name,
                    "is above row_count - null_count",
                    "at most one for each row that is not null",
                )

    def _check_group(self) -> None:
        """Checks the ids of each group, and sorts them together with their names."""
        column, names = self.columns["column_ids"], self.given("column_names")
        groups = column.to_pylist()
        for index, ids in enumerate(groups):
            with self.refusing(index, "column_ids"):
                targets.Target.column_group(ids)
        self.columns["column_ids"] = pa.array(map(sorted, groups), column.type)
        if names is None:
            return
        named = names.to_pylist()
        fits = pa.array([of is None or len(of) == len(ids) for of, ids in zip(named, groups, strict=True)])
        self.require(fits, "column_names", "are not as many as column_ids", "a name for each id")
        in_order = (
            of and [name for _, name in sorted(zip(ids, of, strict=True))]
            for of, ids in zip(named, groups, strict=True)
        )
        self.columns["column_names"] = pa.array(in_order, names.type)

    def _check_deletes(self) -> None:
        """Checks the fields of equality deletes and the delete files of data files."""
        if (ids := self.given("equality_field_ids")) is not None:
            self.require_each(ids, pc.greater(ids.flatten(), 0), "equality_field_ids", "is not positive", "field ids")
        if (deletes := self.given("delete_files")) is None:
            return
        parts = dict(zip(DELETE_FILE.names, deletes.flatten().flatten(), strict=True))
        path = pc.greater(pc.utf8_length(pc.utf8_trim_whitespace(parts["file_path"])), 0)
        in_log = pc.and_(pc.is_null(path), pc.equal(parts["file_content"], "DELETION_VECTOR").fill_null(False))
        self.require_each(
            deletes,
            pc.or_(path.fill_null(False), in_log),
            "delete_files",
            "has no file_path",
            "the path of a delete file; null for a deletion vector within the table's log",
        )
        known = pc.is_in(parts["file_content"], pa.array([*DELETE_CONTENTS, None], pa.string()))
        self.require_each(deletes, known, "delete_files", "has an unknown file_content", " | ".join(DELETE_CONTENTS))
        for name in ("content_offset", "content_size"):
            holds = pc.greater_equal(parts[name], 0).fill_null(True)
            self.require_each(deletes, holds, "delete_files", f"has a negative {name}", "at least 0")

    def _check_sketch(self) -> None:
        """Checks the target of each sketch: a storage_id, or a kind with its column; if both are given they must
        agree."""
        kinds = self.columns.get("target_kind", pa.nulls(self.length, pa.string()))
        given = self.columns.get("storage_id", pa.nulls(self.length, pa.string()))
        for kind, column in target_ids.NAMED_BY.items():
            value = self.columns.get(column)
            named = given.is_valid() if value is None else pc.or_(given.is_valid(), value.is_valid())
            lacking = pc.and_(pc.equal(kinds, str(kind)).fill_null(False), pc.invert(named))
            if (index := pc.index(lacking, True).as_py()) >= 0:
                raise self.refuse(index, column, f"is missing for a {kind} target", f"{column} or storage_id", "null")
        if given.null_count == len(given):
            return
        column_range = pc.and_(
            pc.greater_equal(given, target_ids.of_column(1)),
            pc.less_equal(given, target_ids.of_column(targets.MAX_ID)),
        )
        fine = pc.and_(
            pc.match_substring_regex(given, target_ids.PATTERN),
            pc.or_(pc.invert(pc.starts_with(given, "column-")), column_range),
        )
        self.require(fine, "storage_id", "is not a storage id", "table, column-…, file-…, expression-… or composite-…")
        if "target_kind" in self.columns:
            fine = pc.equal(kinds, target_ids.kinds_of(given))
            self.require(fine, "storage_id", "does not match target_kind", "a storage_id of target_kind")
        if "column_id" in self.columns:
            ids = pc.if_else(pc.starts_with(given, "column-"), target_ids.of_columns(self.columns["column_id"]), None)
            self.require(pc.equal(given, ids), "storage_id", "does not match column_id", "the storage_id of column_id")
        if "file_path" in self.columns:
            ids = pc.if_else(pc.starts_with(given, "file-"), target_ids.of_files(self.columns["file_path"]), None)
            self.require(pc.equal(given, ids), "storage_id", "does not match file_path", "the storage_id of file_path")

    def _check_types_and_bounds(self) -> None:
        column = self.given("logical_type")
        if column is None:
            return  # bounds of an unknown type stay as they are
        coded = column.dictionary_encode()
        names = coded.dictionary.to_pylist()
        types: list[LogicalType] = []
        for name in names:
            with self.refusing(pc.index(column, name).as_py(), "logical_type"):
                types.append(logical_types.parse(name))
        texts = [type.text for type in types]
        if texts != names:
            self.columns["logical_type"] = pa.array(texts, pa.string()).take(coded.indices)
        if all(self.given(side) is None for side in SIDES):
            return
        distinct = list(dict.fromkeys(types))
        if len(distinct) == 1 and not column.null_count:
            given = {name: self.columns[name] for name in SIDES if name in self.columns}
            self.columns |= self._bounds(distinct[0], given, None)
            return
        # Sorted by type, so that each type is one slice.
        numbers = np.array([distinct.index(type) for type in types])
        codes = np.where(
            column.is_valid().to_numpy(zero_copy_only=False),
            numbers[coded.indices.fill_null(0).to_numpy(zero_copy_only=False)],
            len(distinct),
        )
        order = np.argsort(codes, kind="stable")
        ends = np.cumsum(np.bincount(codes, minlength=len(distinct) + 1))
        self._normalise_slices(distinct, order, ends.tolist())

    def _normalise_slices(self, types: Sequence[LogicalType], order: np.ndarray, ends: list[int]) -> None:
        columns = {name: self.columns[name] for name in SIDES if name in self.columns}
        is_in_order = bool((order[1:] > order[:-1]).all())  # as rows of columns are that were read together
        whole = columns if is_in_order else {name: column.take(pa.array(order)) for name, column in columns.items()}
        pieces: dict[str, list[pa.Array]] = {name: [] for name in whole}
        start = 0
        for type, end in zip([*types, None], ends, strict=True):
            part = {name: column.slice(start, end - start) for name, column in whole.items()}
            if type is not None:
                part = self._bounds(type, part, order[start:end])
            for name, column in part.items():
                pieces[name].append(column)
            start = end
        inverse = np.empty_like(order)
        inverse[order] = np.arange(len(order))
        for name, parts in pieces.items():
            joined = pa.concat_arrays(parts)
            self.columns[name] = joined if is_in_order else joined.take(pa.array(inverse))

    def _mark_inexact(self, name: str, rounded: pa.BooleanArray, rows: np.ndarray | None) -> None:
        """Marks bounds as inexact, if the put says at all which ones are exact."""
        flag = exactness(name)
        if (exact := self.given(flag)) is not None:
            inexact = rounded.to_numpy(zero_copy_only=False)
            if rows is not None:
                inexact = np.isin(np.arange(self.length), rows[inexact])
            self.columns[flag] = pc.if_else(pa.array(inexact), False, exact)

    def _bounds(self, type: LogicalType, texts: dict[str, pa.Array], rows: np.ndarray | None) -> dict[str, pa.Array]:
        """Canonical bounds of rows of one type; `rows` are their indices in the batch, None for all of it."""

        def place(index: int) -> int:
            return index if rows is None else int(rows[index])

        lower, upper = SIDES
        done = {}
        for name, column in texts.items():
            done[name] = column
            if column.null_count == len(column):
                continue
            if not type.orderable and type.kind is not Kind.INTERVAL:
                index = pc.index(column.is_valid(), True).as_py()
                reason = f"{type.kind} has no order and so no bounds"
                raise self.refuse(place(index), name, reason, "null", column[index].as_py() or "''")
            try:
                canonical = bounds.canonicalize_array(column, type, self.policy)
            except bounds.BadBound as error:
                expected = f"a bound of {type.text}"
                raise self.refuse(place(error.index), name, error.reason, expected, error.text or "''") from None
            done[name], rounded = bounds.enclosing(column, canonical, type, upper=name == upper)
            if rounded is not None:
                self._mark_inexact(name, rounded, rows)
        if type.orderable and all(name in done and done[name].null_count < len(done[name]) for name in SIDES):
            fine = bounds.in_order(done[lower], done[upper], type)
            if not pc.all(fine, min_count=0).as_py():
                index = pc.index(fine, False).as_py()
                expected = f"at most the {upper} of this {type.text}, {shown(done[upper][index].as_py())}"
                raise self.refuse(place(index), lower, f"is above {upper}", expected, done[lower][index].as_py())
        return done
