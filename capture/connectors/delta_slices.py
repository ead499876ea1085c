"""A large Delta log, a slice at a time: deltalake itself would hold all of it, ten kilobytes for every file.

The log is replayed here as far as names go: which adds are live. What an add says is then read by deltalake, from a log
of a few thousand adds that is written to a temporary directory. So values are the same, and memory is bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable

from capture.connectors.footers import batched
from capture.connectors.layout import Place

LARGE: Final = 16 << 20
"""From so many bytes of log on it is read in slices."""

SLICE: Final = 10_000  # adds
_ROWS: Final = 2_000  # of a checkpoint read at once
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
_TEXTS = pa.map_(pa.string(), pa.string())
_FIELDS: Final = {
    "path": pa.string(), "partitionValues": _TEXTS, "size": pa.int64(), "modificationTime": pa.int64(),
    "dataChange": pa.bool_(), "stats": pa.string(),
}  # fmt: skip
_STATISTICS: Final = ("null_count", "min", "max")
_ADD = pa.struct(list(_FIELDS.items()))
_NUMBER = r'"numRecords"\s*:\s*(?P<rows>\d+)'


class NotSliced(Exception):
    """The log holds what only deltalake can replay."""


@dataclass(frozen=True, slots=True)
class _Source:
    """A commit, or one file of a checkpoint."""

    place: Place
    size: int
    is_commit: bool


class LargeLog:
    """The log of one version of a table."""

    def __init__(self, sources: list[_Source]):
        self._sources = sources  # newest first
        self._head: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None

    @classmethod
    def of(cls, table: Place, version: int) -> LargeLog | None:
        """The log, None where it is small or of a kind that is not read here.

        Raises:
            OSError: It cannot be listed.
        """
        log = table.below("_delta_log")
        commits: dict[int, _Source] = {}
        checkpoints: dict[tuple[int, int], list[_Source]] = {}
        newest_other = -1  # checkpoints of the second version
        for info in log.file_system.get_file_info(pafs.FileSelector(log.path, recursive=False)):
            if info.type != pafs.FileType.File or not info.size:
                continue
            held = log.below(info.base_name)
            if found := _COMMIT.fullmatch(info.base_name):
                commits[int(found[1])] = _Source(held, info.size, True)
            elif found := _CHECKPOINT.fullmatch(info.base_name):
                checkpoints.setdefault((int(found[1]), int(found[3] or 1)), []).append(_Source(held, info.size, False))
            elif (found := re.match(r"(\d{20})\.checkpoint\.", info.base_name)) and int(found[1]) <= version:
                newest_other = max(newest_other, int(found[1]))
        whole = [key for key, files in checkpoints.items() if len(files) == key[1] and key[0] <= version]
        base = max(whole, default=(-1, 0))
        later = range(version, base[0], -1)
        if newest_other > base[0] or any(number not in commits for number in later):
            return None
        sources = [commits[number] for number in later] + checkpoints.get(base, [])
        return cls(sources) if sum(source.size for source in sources) >= LARGE else None

    def outline(self) -> DeltaTable:
        """The table without a file: its metadata, schema and protocol.

        Raises:
            NotSliced: The log does not tell them.
        """
        with TemporaryDirectory(prefix="statflight-") as folder:
            return self._table(folder, None)

    def slices(self, *, statistics: bool) -> Iterator[pa.Table]:
        """What `get_add_actions(flatten=False)` tells of the live files; without statistics but row counts if asked.

        Raises:
            NotSliced: The log holds what only deltalake can replay.
        """
        for adds in self._live():
            if not statistics:
                rows = pc.struct_field(pc.extract_regex(adds.field("stats"), _NUMBER), [0])
                brief = pc.binary_join_element_wise('{"numRecords":', rows, "}", "")
                adds = _with_stats(adds, brief)
            with TemporaryDirectory(prefix="statflight-") as folder:
                found = pa.table(self._table(folder, adds).get_add_actions(flatten=False))
            if len(found) != len(adds):
                raise NotSliced("deltalake counts other files")
            if not statistics:  # columns of nothing but nulls are large too
                found = found.select([name for name in found.column_names if name not in _STATISTICS])
            yield found.combine_chunks() if found.column(0).num_chunks > 1 else found

    def _table(self, folder: str, adds: pa.StructArray | None) -> DeltaTable:
        protocol, metadata = self._heads()
        log = Path(folder) / "_delta_log"
        log.mkdir()
        head = f"{json.dumps({'protocol': protocol})}\n{json.dumps({'metaData': metadata})}\n"
        with (log / f"{0:020}.json").open("w", encoding="utf-8") as out:
            out.write(head)
            for held in [] if adds is None else adds.to_pylist():
                held["partitionValues"] = dict(held["partitionValues"] or ())
                out.write(json.dumps({"add": held}) + "\n")
        return DeltaTable(folder)

    def _heads(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The newest protocol and metadata."""
        if self._head is None:
            found: dict[str, Mapping[str, Any]] = {}
            for source in self._sources:
                for action in _commit_heads(source) if source.is_commit else _checkpoint_heads(source):
                    for name in ("protocol", "metaData"):
                        if action.get(name) and name not in found:
                            found[name] = action[name]
                if len(found) == 2:
                    break
            else:
                raise NotSliced("the log tells no protocol or no metadata")
            if '"numRecords"' in str(found["metaData"].get("schemaString")):
                raise NotSliced("a column is called as the count of rows is")
            self._head = found["protocol"], found["metaData"]
        return self._head

    def _live(self) -> Iterator[pa.StructArray]:
        """The adds that no newer commit takes back, in slices."""
        seen: set[str] = set()
        held: list[pa.StructArray] = []
        count = 0
        for part in self._parts(seen):
            held.append(part)
            count += len(part)
            if count >= SLICE:
                yield pa.concat_arrays(held)
                held, count = [], 0
        if held:
            yield pa.concat_arrays(held)

    def _parts(self, seen: set[str]) -> Iterator[pa.StructArray]:
        for source in self._sources:
            if not source.is_commit:
                yield from _checkpoint_adds(source, seen)
                continue
            here: set[str] = set()  # of two actions of one commit on one file neither undoes the other
            for lines in batched(_lines(source), _ROWS):
                adds = []
                for action in map(json.loads, lines):
                    add, gone = action.get("add"), action.get("remove")
                    for held in (add, gone):
                        if held and held.get("deletionVector"):
                            raise NotSliced("files have deletion vectors")
                    if add and add["path"] not in seen:
                        adds.append({name: add.get(name) for name in _FIELDS} | {"partitionValues": list((add.get("partitionValues") or {}).items())})  # fmt: skip  # noqa: E501
                    if add or gone:
                        here.add((add or gone)["path"])
                if adds:
                    yield pa.array(adds, _ADD)
            seen |= here


def _with_stats(adds: pa.StructArray, stats: pa.Array) -> pa.StructArray:
    columns = [stats if name == "stats" else adds.field(name) for name in _FIELDS]
    return pa.StructArray.from_arrays(columns, fields=list(_ADD))


def _lines(source: _Source) -> Iterator[bytes]:
    with source.place.file_system.open_input_stream(source.place.path) as stream:
        rest = b""
        while chunk := stream.read(4 << 20):
            *whole, rest = (rest + chunk).split(b"\n")
            yield from filter(None, whole)
        if rest.strip():
            yield rest


def _commit_heads(source: _Source) -> Iterator[Mapping[str, Any]]:
    for line in _lines(source):
        if b'"protocol"' in line[:64] or b'"metaData"' in line[:64]:
            yield json.loads(line)


def _checkpoint_heads(source: _Source) -> Iterator[Mapping[str, Any]]:
    with source.place.file_system.open_input_file(source.place.path) as file, pq.ParquetFile(file) as parquet:
        names = [name for name in ("protocol", "metaData") if name in parquet.schema_arrow.names]
        for batch in parquet.iter_batches(65_536, columns=names, use_threads=False):
            for name in names:
                for held in batch.column(name).filter(pc.is_valid(batch.column(name))).to_pylist():
                    yield {name: _plain(held)}


def _plain(held: Mapping[str, Any]) -> dict[str, Any]:
    """An action of a checkpoint as a commit has it: no nulls, maps as objects."""
    found: dict[str, Any] = {}
    for name, value in held.items():
        if value is None:
            continue
        if name == "configuration":
            value = dict(value)
        if name == "format":
            value = {"provider": value.get("provider"), "options": dict(value.get("options") or ())}
        found[name] = value
    return found


def _checkpoint_adds(source: _Source, seen: set[str]) -> Iterator[pa.StructArray]:
    with source.place.file_system.open_input_file(source.place.path) as file, pq.ParquetFile(file) as parquet:
        known = parquet.schema_arrow
        if "add" not in known.names:
            return
        add = known.field("add").type
        have = {add.field(i).name for i in range(add.num_fields)}
        if not set(_FIELDS) - {"dataChange"} <= have:
            raise NotSliced("statistics are in another form")
        asked = [f"add.{name}" for name in (*_FIELDS, "deletionVector") if name in have]
        for batch in parquet.iter_batches(_ROWS, columns=asked, use_threads=False):
            adds = batch.column("add")
            adds = adds.filter(pc.is_valid(adds))
            if not len(adds):
                continue
            if "deletionVector" in have and pc.any(pc.is_valid(adds.field("deletionVector"))).as_py():
                raise NotSliced("files have deletion vectors")
            if "stats_parsed" in have and adds.field("stats").null_count == len(adds):
                raise NotSliced("statistics are in another form")
            if seen:
                gone = pa.array(sorted(seen), pa.string())
                adds = adds.filter(pc.invert(pc.is_in(adds.field("path").cast(pa.string()), gone)))
            columns = [
                adds.field(name).cast(type) if name in have else pa.repeat(pa.scalar(False, type), len(adds))
                for name, type in _FIELDS.items()
            ]
            yield pa.StructArray.from_arrays(columns, fields=list(_ADD))
