"""Reads files of a Delta table without the rows that its deletion vectors delete, which `deltalake` decodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from flight_server.client.lake_readers import CannotRead, KeptFiles, checked, plain


def reader(kept: KeptFiles) -> DeltaReader:
    """Opens the table's log and reads its deletion vectors.

    Raises:
        CannotRead: The log cannot be read, or lacks vectors that the server knows of.
    """
    location = kept.place["location"]
    if location is None:
        raise CannotRead("the server does not know where the table lies")
    try:
        table = DeltaTable(location, version=kept.snapshot_id)
        vectors = table.deletion_vectors()
    except (DeltaError, TableNotFoundError, OSError) as error:
        raise CannotRead(f"deltalake: {error}") from error
    wanted = {_within(path, location): path for path in kept.paths}
    live: dict[str, pa.BooleanArray] = {}
    for batch in pa.RecordBatchReader.from_stream(vectors):
        for path, vector in zip(batch[0].to_pylist(), batch[1], strict=True):
            if (known := wanted.get(_within(path, table.table_uri))) is not None:
                live[known] = vector.values
    if missing := sorted(kept.deleted_from - live.keys()):
        raise CannotRead(f"deltalake finds no deletion vector of {missing[0]}")
    return DeltaReader(kept, live)


def _within(path: str, location: str) -> str:
    """A path below a table's location, without it: deltalake follows symbolic links to the table."""
    return plain(path).removeprefix(plain(location).rstrip("/") + "/")


class DeltaReader:
    """Reads files by pyarrow, and leaves out what their vectors delete.

    Args:
        live: Path of a file → for each of its first rows, whether it is live; all rows after these are.
    """

    def __init__(self, kept: KeptFiles, live: Mapping[str, pa.BooleanArray]):
        self._kept, self._live = kept, live
        self._dataset = kept.as_parquet()
        self.schema: pa.Schema = self._dataset.schema

    def batches(self, columns: Sequence[str], filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        """Reads columns of all live rows; see `LakeReader`."""
        for fragment, (path, rows) in zip(self._dataset.get_fragments(), self._kept.paths.items(), strict=True):
            if path not in self._live:
                yield from fragment.to_batches(self.schema, columns=list(columns), filter=filter)
            else:  # as a whole, because vectors count the rows of the file
                whole = fragment.to_batches(self.schema, columns=list(columns))
                yield from checked(_live_rows(whole, self._live[path]), rows, path)


def _live_rows(batches: Iterator[pa.RecordBatch], live: pa.BooleanArray) -> Iterator[pa.RecordBatch]:
    start = 0
    for batch in batches:
        mask = live.slice(start, batch.num_rows)
        start += batch.num_rows
        if len(mask) < batch.num_rows:
            mask = pa.concat_arrays([mask, pa.repeat(True, batch.num_rows - len(mask))])
        yield batch.filter(mask)
