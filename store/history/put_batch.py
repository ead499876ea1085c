"""A batch of a put while it is checked: its columns, and refusals that name the row and the column."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc

from store.history.casts import cast
from store.model.errors import InvalidField


class PutBatch:
    """The columns of a batch, cast to their types in a flight.

    Args:
        schema: The columns of the result, which the batch has.
        first_row: Number of rows of the stream before this batch; errors count rows over the stream, from 1.
    """

    def __init__(self, batch: pa.RecordBatch, schema: pa.Schema, first_row: int):
        self.schema, self.first_row, self.length = schema, first_row, batch.num_rows
        self.columns = {field.name: cast(field.name, batch.column(field.name), field.type) for field in schema}

    def given(self, name: str) -> pa.Array | None:
        """The column; None if it was not given or is all null."""
        column = self.columns.get(name)
        return None if column is None or column.null_count == len(column) else column

    def refuse(self, index: int, name: str, reason: str, expected: object, actual: object = None) -> InvalidField:
        """The error for a value of a column; `actual` is shown in place of the value."""
        actual = self.columns[name][index].as_py() if actual is None else actual
        return InvalidField(name, reason, expected=expected, actual=actual, where=f"row {self.first_row + index + 1}")

    @contextmanager
    def refusing(self, index: int, name: str) -> Iterator[None]:
        """Adds the row to an InvalidField of a value of a column."""
        try:
            yield
        except InvalidField as error:
            params = error.params
            refusal = self.refuse(index, name, params["reason"], params["expected"], params["actual"])
            refusal.hint = error.hint
            raise refusal from None

    def require(self, holds: pa.BooleanArray, name: str, reason: str, expected: object) -> None:
        """Refuses the first row for which `holds` is false; null counts as true."""
        if not pc.all(holds, min_count=0).as_py():
            raise self.refuse(pc.index(holds, False).as_py(), name, reason, expected)

    def map(
        self,
        name: str,
        how: Callable[[str], str],
        expected: str,
        is_normal: Callable[[pa.StringArray], bool] | None = None,
    ) -> None:
        """Normalizes each distinct text with `how`, whose ValueError refuses it.

        Args:
            is_normal: True for texts that are all normal, where that is known sooner.
        """
        if (column := self.given(name)) is None:
            return
        coded = column.dictionary_encode()
        if is_normal is not None and is_normal(coded.dictionary):
            return
        before = coded.dictionary.to_pylist()
        after = []
        for text in before:
            try:
                after.append(how(text))
            except (ValueError, RecursionError) as error:
                reason = "is nested too deep" if isinstance(error, RecursionError) else str(error)
                raise self.refuse(pc.index(column, text).as_py(), name, reason, expected, text or "''") from None
        if after != before:
            self.columns[name] = pa.array(after, pa.string()).take(coded.indices)

    def require_each(self, lists: pa.Array, holds: pa.BooleanArray, name: str, reason: str, expected: str) -> None:
        """Refuses the first row with an element for which `holds` is false or null."""
        index = pc.index(holds.fill_null(False), False).as_py()
        if index >= 0:
            row = pc.list_parent_indices(lists)[index].as_py()
            raise self.refuse(row, name, reason, expected)
