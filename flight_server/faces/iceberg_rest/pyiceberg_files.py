"""The files of a plan in which pyiceberg finds the rows that there are, though they lack the columns of a partition."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from flight_server.faces.iceberg_rest.expressions import Find, columns_of, texts
from flight_server.faces.iceberg_rest.pyiceberg_rows import Lacking, Rows, satisfied_by_none
from flight_server.faces.iceberg_rest.tables import Served
from store.model.bounds import canonical
from store.model.errors import InvalidArgument
from store.model.predicates.plain_conditions import Column
from store.model.predicates.tree import MAX_NODES, Leaf, Node, Op, leaves_of

_NO_VALUE: Final = "\0"  # the name of no field of a partition
MOST_LOOKS: Final = 16  # at the bounds of files, for one plan


@dataclass(frozen=True)
class Asked:
    """A filter that `expressions.condition` reads, None for none, and the columns to be read."""

    filter: Any
    find: Find
    select: Any

    @cached_property
    def named(self) -> Mapping[int, Column]:
        """The columns of the filter, by id."""
        return {column.id: column for column in map(self.find, columns_of(self.filter))}

    def shows(self, id: int) -> bool:
        """True if a column is among those to be read: the ones selected, all if none is."""
        return self._shown is None or id in self._shown

    @cached_property
    def _shown(self) -> set[int] | None:
        names = texts(self.select)
        if not isinstance(self.select, list) or "*" in names:
            return None
        shown = set()
        for name in names:
            with suppress(InvalidArgument):  # the client refuses it
                shown.add(self.find(name).id)
        return shown


def with_absent(
    files: pa.Table, served: Served, asked: Asked, size_of: Callable[[int], pa.ChunkedArray | None]
) -> pa.Table:
    """The files of an Iceberg table, and in `absent` the ids of the columns whose values are those of the partition and
    which a file lacks, or may lack, as far as they are among the columns asked for.

    Args:
        files: Files with `partition_spec_id`.
        size_of: Id of a column → its bytes in each file, null where they are unknown; None if they are for all.
    """
    sources = {id for of_spec in served.sources.values() for id in of_spec if id is not None}
    wanted = sorted(id for id in sources if asked.shows(id) or id in asked.named)
    sizes = {id: size_of(id) for id in wanted}
    is_there = {
        id: [False] * files.num_rows if size is None else pc.greater(size, 0).fill_null(False).to_pylist()
        for id, size in sizes.items()
    }
    absent = [
        [id for id in wanted if id in served.sources.get(spec, ()) and not is_there[id][at]]
        for at, spec in enumerate(files["partition_spec_id"].fill_null(0).to_pylist())
    ]
    return files.append_column("absent", pa.array(absent, pa.list_(pa.int32())))


def with_absent_ones_read(files: pa.Table, asked: Asked) -> pa.Table:
    """The files, and in `absent` only ids of columns that are read."""
    read = [[id for id in ids if asked.shows(id)] for ids in files["absent"].to_pylist()]
    return files.set_column(files.num_columns - 1, "absent", pa.array(read, pa.list_(pa.int32())))


def right_ones(
    files: pa.Table,
    served: Served,
    asked: Asked,
    kept: Callable[[Node], pa.ChunkedArray],
    size_of: Callable[[int], pa.ChunkedArray | None],
) -> tuple[pa.Table, set[str]]:
    """Files as of `right`, each without the columns that it lacks: those of the partition, and those added since, of
    which a file has but nulls.

    Args:
        files: Files; of a table with a name mapping of its own with the column `absent`.
    """
    of_partition = {asked.find(name).id: name for name, _ in served.specs[0]} if served.is_made_up else {}
    nulls = _only_nulls(files, asked, of_partition.keys(), kept, size_of)
    if not served.is_mapped and not nulls:
        return right(files, of_partition, asked, kept)
    found, columns = [files.slice(0, 0)], set[str]()
    for (spec, ids, null_ids), rows in _alike(files, served, nulls).items():
        named = zip(served.sources.get(spec, ()), served.specs.get(spec, ()), strict=False)
        names = of_partition or {id: name for id, (name, _) in named if id is not None and id in ids}
        some, of_some = right(files.take(rows), dict.fromkeys(null_ids, _NO_VALUE) | names, asked, kept)
        found.append(some)
        columns |= of_some
    return pa.concat_tables(found), columns


def _only_nulls(
    files: pa.Table,
    asked: Asked,
    of_partition: Collection[int],
    kept: Callable[[Node], pa.ChunkedArray],
    size_of: Callable[[int], pa.ChunkedArray | None],
) -> dict[int, set[str]]:
    """Id of a column whose test pyiceberg takes for true only where a file lacks it → paths of the files that have but
    nulls of it.

    Args:
        of_partition: Ids of the columns that are left out, as their values are those of the partition.
    """
    ids = {asked.find(name).id for name in satisfied_by_none(asked.filter)}
    nulls = {id: _lacking(files, asked.named[id], kept, size_of) for id in sorted(ids.difference(of_partition))}
    return {id: paths for id, paths in nulls.items() if paths}


def _alike(
    files: pa.Table, served: Served, nulls: Mapping[int, set[str]]
) -> dict[tuple[int, tuple[int, ...], tuple[int, ...]], list[int]]:
    """The rows of files that have the same partition spec, columns that are absent, and columns with but nulls."""
    specs = files["partition_spec_id"].fill_null(0).to_pylist()
    absent = map(tuple, files["absent"].to_pylist()) if served.is_mapped else [()] * files.num_rows
    only_nulls = [tuple(id for id, paths in nulls.items() if path in paths) for path in files["file_path"].to_pylist()]
    alike: dict[tuple[int, tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for at, key in enumerate(zip(specs, absent, only_nulls, strict=True)):
        alike.setdefault(key, []).append(at)
    return alike


def _lacking(
    files: pa.Table,
    column: Column,
    kept: Callable[[Node], pa.ChunkedArray],
    size_of: Callable[[int], pa.ChunkedArray | None],
) -> set[str]:
    """Paths of the files that have but nulls of a column, and perhaps not the column itself."""
    paths, size = files["file_path"], size_of(column.id)
    others = pc.is_in(paths, kept(Leaf(column.name, Op.IS_NOT_NULL)))
    if size is not None:
        others = pc.or_(others, pc.greater(size, 0).fill_null(False))
    return set(paths.filter(pc.invert(others)).to_pylist())


def right(
    files: pa.Table, absent: Mapping[int, str], asked: Asked, kept: Callable[[Node], pa.ChunkedArray]
) -> tuple[pa.Table, set[str]]:
    """The files without those of which no row is to be found; and the columns because of which pyiceberg would find
    other rows than there are, none if it is right.

    Args:
        files: Files with `file_path` and `partition_data_json`.
        absent: Id of a column that the files lack, or may lack → its name in `partition_data_json`.
        kept: Condition → paths of the files that may have a row for which it is true.
    """
    tested = absent.keys() & asked.named.keys()
    if not tested or not files.num_rows:
        return files, set()
    coded = files["partition_data_json"].combine_chunks().fill_null("{}").dictionary_encode()
    groups = [json.loads(text) for text in coded.dictionary.to_pylist()]
    lacking = {
        id: Lacking(
            asked.named[id].type,
            pa.array([_text(values.get(absent[id]), asked.named[id]) for values in groups], pa.string()),
            asked.shows(id),
        )
        for id in tested
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


def partition_of(
    served: Served, spec_id: int, values: Mapping[int, Any], absent: Collection[int]
) -> dict[str, Any] | None:
    """Spec and partition of a file of an Iceberg table with a null among its partition values, which pyiceberg refuses;
    None if there is none by which it reads the file right.

    It looks up the columns that a file lacks, by position, in the file's partition, if the metadata has the spec.

    Args:
        values: Id of a column → its value in the partition, null for null.
        absent: Ids of the columns that the file lacks, or may lack, and that are read.
    """
    if not absent:
        return {"spec-id": spec_id}
    known = {id for id in absent if values.get(id) is not None}
    if not known:
        return {"spec-id": max(served.specs, default=0) + 1}
    for id, sources in served.sources.items():
        told = [values.get(source) if source is not None else None for source in sources]
        if known <= set(sources) and None not in told:
            return {"spec-id": id, "partition": told}
    return None
