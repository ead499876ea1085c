"""Writes copy-on-write tables of Hudi as its specification of the timeline has them, with files of pyarrow's."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

META = ("_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_record_key", "_hoodie_partition_path")


class HudiTable:
    """A table that is written.

    Args:
        version: Of the table: 6 has its timeline in `.hoodie`, 8 in a directory below it.
    """

    def __init__(self, path: Path, *, version: int = 6, partitions: str = "", **properties: str):
        self.path = path
        self.timeline = path / ".hoodie" if version < 8 else path / ".hoodie/timeline"
        self.timeline.mkdir(parents=True)
        self._version = version
        self._written: dict[str, list[dict[str, Any]]] = {}
        given = {
            "hoodie.table.name": path.name,
            "hoodie.table.type": "COPY_ON_WRITE",
            "hoodie.table.version": str(version),
            "hoodie.timeline.layout.version": "1" if version < 8 else "2",
            "hoodie.table.recordkey.fields": "id",
            "hoodie.table.partition.fields": partitions,
            "hoodie.datasource.write.hive_style_partitioning": "true",
            "hoodie.datasource.write.drop.partition.columns": "false",
            "hoodie.table.create.schema": json.dumps(
                {"type": "record", "name": "t", "fields": [{"name": "id", "type": ["null", "long"]}]}
            ),
        } | {name.replace("__", "."): value for name, value in properties.items()}
        lines = [f"{name}={value}" for name, value in given.items() if value]
        (path / ".hoodie/hoodie.properties").write_text("\n".join(lines) + "\n")

    def data(self, instant: str, group: str, rows: Any, partition: str = "") -> Path:
        """Writes a data file of a file group, which no commit names yet."""
        folder = self.path / partition
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".hoodie_partition_metadata").write_text(f"commitTime={instant}\npartitionDepth=0\n")
        table = rows if isinstance(rows, pa.Table) else pa.table(rows)
        added = {name: pa.array([f"{name}-{i}" for i in range(table.num_rows)], pa.string()) for name in META}
        for name in reversed(META):
            table = table.add_column(0, name, added[name])
        file = folder / f"{group}-0_0-1-1_{instant}.parquet"
        pq.write_table(table, file)
        self._written.setdefault(partition, []).append(
            {
                "fileId": f"{group}-0",
                "path": str(file.relative_to(self.path)),
                "prevCommit": "null",
                "numWrites": table.num_rows,
                "fileSizeInBytes": file.stat().st_size,
            }
        )
        return file

    def commit(
        self, instant: str, files: Mapping[str, Any], partition: str = "", replaced: Sequence[str] | None = None
    ) -> None:
        """Commits data files: those that are written and not committed, and of these file groups: group → its rows.

        Args:
            replaced: File groups that the commit replaces; None if it is not such a commit.
        """
        for group, rows in files.items():
            self.data(instant, group, rows, partition)
        written, self._written = self._written, {}
        metadata: dict[str, Any] = {
            "partitionToWriteStats": written,
            "compacted": False,
            "extraMetadata": {},
            "operationType": "UPSERT" if replaced is None else "INSERT_OVERWRITE",
        }
        if replaced is not None:
            metadata["partitionToReplaceFileIds"] = {partition: [f"{group}-0" for group in replaced]}
        self.instant(instant, "commit" if replaced is None else "replacecommit", metadata)

    def abandon(self) -> None:
        """Forgets the data files that are written and not committed, as a writer that dies."""
        self._written = {}

    def instant(self, instant: str, action: str, metadata: Mapping[str, Any] | None = None) -> None:
        """Writes a completed instant, with its metadata as JSON; as Avro from version 8 on."""
        end = "" if self._version < 8 else f"_{int(instant) + 5}"
        content = json.dumps(metadata or {}).encode()
        if self._version >= 8 and metadata is not None:
            stream = io.BytesIO()
            schema = _REPLACE if action == "replacecommit" else _COMMIT
            fastavro.writer(stream, schema, [metadata])
            content = stream.getvalue()
        (self.timeline / f"{instant}{end}.{action}").write_bytes(content)


def _optional(kind: Any) -> list[Any]:
    return ["null", kind]


_STAT = {
    "type": "record",
    "name": "HoodieWriteStat",
    "fields": [
        {"name": name, "type": _optional(kind), "default": None}
        for name, kind in (
            ("fileId", "string"),
            ("path", "string"),
            ("prevCommit", "string"),
            ("numWrites", "long"),
            ("fileSizeInBytes", "long"),
        )
    ],
}
_FIELDS = [
    {
        "name": "partitionToWriteStats",
        "type": _optional({"type": "map", "values": _optional({"type": "array", "items": _optional(_STAT)})}),
        "default": None,
    },
    {"name": "extraMetadata", "type": _optional({"type": "map", "values": _optional("string")}), "default": None},
    {"name": "compacted", "type": _optional("boolean"), "default": None},
    {"name": "operationType", "type": _optional("string"), "default": None},
]
_OF_REPLACE = {
    "name": "partitionToReplaceFileIds",
    "type": _optional({"type": "map", "values": _optional({"type": "array", "items": _optional("string")})}),
    "default": None,
}
_COMMIT = {"type": "record", "name": "HoodieCommitMetadata", "fields": _FIELDS}
_REPLACE = {"type": "record", "name": "HoodieReplaceCommitMetadata", "fields": [*_FIELDS, _OF_REPLACE]}
