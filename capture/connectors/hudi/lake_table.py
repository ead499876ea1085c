"""One Hudi table of a lake: what it is, its commits, and the files of a snapshot."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import hudi

from capture.connectors.footers.statistics import ListedFile
from capture.connectors.hudi import METADATA
from capture.connectors.storage.lake_directories import folder_at
from capture.connectors.storage.places import Place, Unreadable

_CLEAN: Final = re.compile(r"(\d+)(?:_\d+)?\.clean")  # a clean that completed, of any version of the timeline
_TIMELINE: Final = "hoodie.timeline.path"
_TIMELINE_LAYOUT: Final = "hoodie.timeline.layout.version"
_ZONE: Final = "hoodie.table.timeline.timezone"
_PARTITION_FIELDS: Final = "hoodie.table.partition.fields"
_KEYS: Final = ("hoodie.table.keygenerator.type", "hoodie.table.keygenerator.class")
_TRANSFORMS: Final = ("TIMESTAMP", "CUSTOM")


def _is(name: str, value: str) -> Callable[[Mapping[str, str]], bool]:
    return lambda properties: properties.get(name, value).upper() != value.upper()


REFUSED: Final[Mapping[str, Callable[[Mapping[str, str]], bool]]] = {
    "is merge-on-read: rows of its files are merged with logs when they are read; only copy-on-write tables are read": (
        _is("hoodie.table.type", "COPY_ON_WRITE")
    ),
    "has base files of another format than Parquet": _is("hoodie.table.base.file.format", "PARQUET"),
    "is bootstrapped: its rows are in files of another table": lambda properties: any(
        properties.get(name) for name in ("hoodie.bootstrap.base.path", "hoodie.table.bootstrap.base.path")
    ),
}
"""Why a table is not read, by its properties; each reason goes after its name."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A completed commit.

    Attributes:
        instant: Its id on the timeline, the time at which it began; a longer one is more precise.
        action: What it did, such as commit or replacecommit.
        milliseconds: The same since the epoch, if the time zone of the timeline is known; None if not.
    """

    instant: str
    action: str
    milliseconds: int | None

    @property
    def snapshot_id(self) -> int:
        """Id of the snapshot."""
        return int(self.instant)


class LakeTable:
    """An opened table.

    Args:
        place: Its directory.
        options: Storage options, for the library.

    Raises:
        Unreadable: It is of a kind that is not read; says which.
    """

    def __init__(self, namespace: str, name: str, place: Place, options: Mapping[str, str]):
        self._what, self.place = f'table "{namespace}.{name}"', place
        self._table: Any = hudi.HudiTable(place.name, dict(options))
        self.properties: dict[str, str] = self._table.hudi_options()
        for reason, is_refused in REFUSED.items():
            if is_refused(self.properties):
                raise self.unreadable(reason)
        if self._evolves_by_id():
            raise self.unreadable("has a history of schemas by column ids (hoodie.schema.on.read.enable)")

    def unreadable(self, reason: str) -> Unreadable:
        """The error for a table that cannot be read."""
        return Unreadable(f"{self._what} {reason}")

    @cached_property
    def commits(self) -> list[Commit]:
        """The commits whose files are all there, in their order.

        A clean removes files that the newest commit before it does not need, so that older ones may lack some.
        """
        timeline = self._table.get_timeline()
        found = {
            instant.timestamp: Commit(instant.timestamp, instant.action, self._milliseconds(instant))
            for instant in (*timeline.get_completed_commits(), *timeline.get_completed_replacecommits())
        }
        commits = sorted(found.values(), key=lambda commit: commit.snapshot_id)
        cleaned = max(self._cleans(), default=0)
        before = [commit.snapshot_id for commit in commits if commit.snapshot_id < cleaned]
        oldest = max(before, default=0)
        return [commit for commit in commits if commit.snapshot_id >= oldest]

    def files(self, commit: Commit) -> list[ListedFile]:
        """The data files of a snapshot, by their names."""
        options = hudi.HudiReadOptions().with_as_of_timestamp(commit.instant)
        files = []
        for piece in self._table.get_file_slices(options):
            relative = piece.base_file_relative_path()
            if piece.has_log_files() or not relative.endswith(".parquet"):
                raise self.unreadable(f"has a file that is read together with others: {relative}")
            files.append(ListedFile(self.place.below(relative), piece.base_file_size))
        return sorted(files, key=lambda file: file.place.name)

    def arrow_schema(self) -> Any:
        """The current schema, without the columns that Hudi adds."""
        return self._table.get_schema()

    @property
    def partition_fields(self) -> tuple[str, ...]:
        """Names of the columns whose values its directories are made of; none if it is of parts of them, such as the
        day of a time."""
        keys = " ".join(self.properties.get(name, "") for name in _KEYS).upper()
        if any(word in keys for word in _TRANSFORMS):
            return ()
        fields = self.properties.get(_PARTITION_FIELDS, "").split(",")
        return tuple(field.partition(":")[0].strip() for field in fields if field.strip())

    def _milliseconds(self, instant: Any) -> int | None:
        return int(instant.epoch_mills) if self.properties.get(_ZONE, "").upper() == "UTC" else None

    def _timeline(self) -> Place:
        """The directory of the timeline."""
        folder = self.place.below(METADATA)
        is_old = self.properties.get(_TIMELINE_LAYOUT, "1") in ("0", "1")
        return folder if is_old else folder.below(self.properties.get(_TIMELINE) or "timeline")

    def _cleans(self) -> Iterator[int]:
        """Instants of the cleans that completed."""
        files, _ = folder_at(self._timeline())
        for file in files:
            if match := _CLEAN.fullmatch(file.base_name):
                yield int(match[1])

    def _evolves_by_id(self) -> bool:
        """True if columns may have been renamed: their files must then be read by ids."""
        files, folders = folder_at(self.place.below(METADATA))
        if ".schema" not in folders:
            return False
        files, _ = folder_at(self.place.below(f"{METADATA}/.schema"))
        return any(not file.base_name.startswith(".") for file in files)
