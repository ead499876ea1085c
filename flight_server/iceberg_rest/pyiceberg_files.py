"""The files of a plan in which pyiceberg finds the rows that there are, though they lack the columns of a partition."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from flight_server.iceberg_rest.expressions import Find, columns_of, texts
from flight_server.iceberg_rest.made_up import Partition
from flight_server.iceberg_rest.pyiceberg_rows import Lacking, Rows
from flight_server.iceberg_rest.tables import values_of
from store.model.bounds import canonical
from store.model.errors import InvalidArgument
from store.model.predicates.pruning import Column
from store.model.predicates.tree import MAX_NODES, Node, leaves_of

MOST_LOOKS: Final = 16  # at the bounds of files, for one plan


@dataclass(frozen=True)
class Asked:
    """A filter that `expressions.condition` reads, and the columns to be read."""

    filter: Any
    find: Find
    select: Any

    def shows(self, column: Column) -> bool:
        """True if a column is among those to be read: the ones named, all if none is."""
        names = texts(self.select)
        if not isinstance(self.select, list) or "*" in names:
            return True
        for name in names:
            with suppress(InvalidArgument):  # the client refuses it
                if self.find(name).id == column.id:
                    return True
        return False


def right(
    files: pa.Table, partition: Partition, asked: Asked, kept: Callable[[Node], pa.ChunkedArray]
) -> tuple[pa.Table, set[str]]:
    """The files without those of which no row is to be found; and the columns because of which pyiceberg would find
    other rows than there are, none if it is right.

    Args:
        files: Files with `file_path` and `partition_data_json`.
        partition: The columns that the files lack.
        kept: Condition → paths of the files that may have a row for which it is true.
    """
    named = {column.name: column for column in map(asked.find, columns_of(asked.filter))}
    of_condition = [name for name, _ in partition if name in named]
    if not of_condition or not files.num_rows:
        return files, set()
    coded = files["partition_data_json"].combine_chunks().fill_null("{}").dictionary_encode()
    groups = [
        dict(zip((n for n, _ in partition), values_of(t, partition), strict=True)) for t in coded.dictionary.to_pylist()
    ]
    lacking = {
        named[name].id: Lacking(
            named[name].type,
            pa.array([_text(values[name], named[name]) for values in groups], pa.string()),
            asked.shows(named[name]),
        )
        for name in of_condition
    }
    rows = Rows(asked.filter, asked.find, lacking, len(groups))
    group_of = coded.indices.to_numpy()
    files, group_of = files.filter(pa.array(~rows.none[group_of])), group_of[~rows.none[group_of]]
    differences = rows.differences()
    if len(differences) > MOST_LOOKS:
        return files, rows.columns(rows.doubtful)
    for doubtful, differing in differences:
        paths = files["file_path"].filter(pa.array(doubtful[group_of]))
        if isinstance(differing, bool) or sum(1 for _ in leaves_of(differing)) > MAX_NODES:
            is_right = differing is False
        else:
            is_right = not pc.any(pc.is_in(paths, kept(differing))).as_py()
        if not is_right:
            return files, rows.columns(doubtful)
    return files, set()


def _text(value: Any, column: Column) -> str | None:
    """The canonical text of a partition's value; None for null."""
    return None if value is None or column.type is None else canonical(str(value), column.type)
