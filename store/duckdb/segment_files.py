"""The files of segments: immutable Parquet files in a directory of one database (`segment_buckets`: in a bucket).

A file is written under its own name, synced, and belongs to nothing until a row of `segments` names it. It is compared
with its digest when this process reads it for the first time, and again when its size or times changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import stat
import time
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from store.model.errors import InvalidArgument, ResourceExhausted, StatflightError
from store.model.predicates.float_ranges import HIGH, LOW, with_ranges
from store.model.puts import shown

log = logging.getLogger("statflight.store")

SUFFIX: Final = ".parquet"
VERSION: Final = 1
"""Version of the files; a newer one is refused."""

GRACE_SECONDS: Final = 900.0
"""How long a file that no row names stays while a server runs: longer than most reads."""

MARK: Final = "owner"
"""Name of the object that says whose a directory or bucket is."""

_NAME: Final = re.compile(rf"[0-9a-f]{{32}}{re.escape(SUFFIX)}")
_VERSION_KEY: Final = b"statflight.segment"
_LEAST_GROUP_ROWS: Final = 1024
_MOST_GROUP_ROWS: Final = 122_880
_FILES_GROUP_ROWS: Final = 16_384
"""Rows of a row group of files, of which a plan reads those with the few that it keeps."""

_PAGE_BYTES: Final = 1 << 20
ROUNDED_BOUNDS: Final = {LOW: pa.float32(), HIGH: pa.float32()}
"""Columns that follow from the bounds: files may have them, and rows of the store do not."""

_DISTINCT: Final = frozenset({"file_path", "storage_id", "min", "max", "data", *ROUNDED_BOUNDS})
"""Columns whose values are mostly different within a row group, so that a dictionary would cost and save nothing."""

_UNORDERED: Final = frozenset({"min", "max", "data", "schema_hash"})
"""Columns by whose values no reader skips row groups."""

_Signature: TypeAlias = tuple[int, int, int]


class SegmentError(StatflightError):
    """A segment that is missing, damaged or of a newer version; the message has the name of its file."""

    code = "SEGMENT"
    status = "INTERNAL"
    retryable = False

    def __init__(self, name: str, reason: str):
        super().__init__(
            f"the segment {name} {reason}",
            hint="restore it with a backup or replica, or delete the statistics of its table and capture it again",
            params={"file": name},
        )


class Written(NamedTuple):
    """A file that was written: its name, digest (SHA-256), and size."""

    name: str
    digest: str
    size_bytes: int
    row_count: int


class SegmentFiles:
    """The directory of the segments of one database.

    Args:
        directory: The directory, made when it is needed; None for a database without one.
    """

    def __init__(self, directory: Path | None):
        self.directory = directory
        self.being_written: set[str] = set()
        """Names of files that a capture has written and may still commit."""
        self.is_shipped = False
        """True if `add` notes files for a replica."""
        self.to_ship: set[str] = set()
        """Names of files that commits may refer to, and that a replica does not have yet."""
        self._left: dict[str, float] = {}  # name of a file that no row names → since when, by the monotonic clock
        self._writers: dict[object, float] = {}  # captures whose files are not known yet → since when
        self._known: dict[str, tuple[_Signature, str, frozenset[str]]] = {}

    @property
    def location(self) -> str:
        """The place of the files: an absolute path, or the URL of a bucket."""
        assert self.directory is not None
        return str(self.directory.absolute())

    def continue_from(self, other: SegmentFiles) -> None:
        """Takes over what another place of the same database knew of files that commits do not refer to yet."""
        self.being_written, self._writers = other.being_written, other._writers
        self.is_shipped, self.to_ship = other.is_shipped, other.to_ship

    def path(self, name: str) -> Path:
        """The path of a file."""
        assert self.directory is not None
        return self.directory / name

    @property
    def is_usable(self) -> bool:
        """True if SQL can name the files: paths with braces would be taken for Arrow tables (`arrow_sql`)."""
        return self.directory is not None and not set("{}") & set(str(self.directory))

    def pattern(self, name: str) -> str:
        """The pattern that matches the path of a file, and no other."""
        return re.sub(r"[*?\[]", r"[\g<0>]", str(self.path(name)))

    def prepare(self) -> None:
        """Makes the directory.

        Raises:
            InvalidArgument: It cannot be made or written.
        """
        assert self.directory is not None
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise unusable(self.location, error.strerror or "it cannot be made") from None
        if not os.access(self.directory, os.W_OK | os.X_OK):
            raise unusable(self.location, "it cannot be written")

    def claim(self, owner: str) -> None:
        """Makes the directory that of one database, which alone deletes files in it.

        Args:
            owner: Name of the database.

        Raises:
            InvalidArgument: It is another's.
        """
        assert self.directory is not None
        mark = self.directory / MARK
        try:
            with contextlib.suppress(FileExistsError), mark.open("x") as file:
                mark.chmod(0o600)
                file.write(owner)
            found = mark.read_text()
        except OSError as error:
            raise unusable(self.location, error.strerror or "it cannot be written") from None
        if found != owner:
            raise unusable(self.location, "it has the segments of another database")

    def is_shared_with(self, owner: str) -> bool:
        """True if this process may write into the directory, and it is that of a database, by its name."""
        if self.directory is None:
            return False
        try:
            is_same = (self.directory / MARK).read_text() == owner
            return is_same and self.directory.stat().st_uid == os.geteuid() and os.access(self.directory, os.W_OK)
        except OSError:
            return False

    def adopt(self, written: Written) -> None:
        """Takes a file that another process has written into the directory as one that a capture may still commit.

        Raises:
            InvalidArgument: The name is none of a segment, or the file is taken already.
            SegmentError: It is missing, or not of this size.
        """
        name = written.name
        if not _NAME.fullmatch(name) or name in self.being_written:
            raise InvalidArgument(f"the segment {shown(name)} cannot be taken", hint="hand each file over once")
        self._look_at(written)
        self.being_written.add(name)

    def _look_at(self, written: Written) -> None:
        """Checks that another process has written a file, without reading it."""
        try:
            found = self.path(written.name).lstat()
        except OSError:
            raise SegmentError(written.name, "is missing") from None
        if not stat.S_ISREG(found.st_mode) or found.st_size != written.size_bytes:
            raise SegmentError(written.name, "is not of the size that was written")

    def write(self, rows: pa.Table) -> Written:
        """Writes a file, durably.

        Raises:
            ResourceExhausted: There is no room for it.
        """
        self.prepare()
        name = new_name()
        self.being_written.add(name)
        path = self.path(name)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w+b") as file:
                columns = write_parquet(rows, file)
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
                file.seek(0)
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                self._known[name] = _signature(os.fstat(file.fileno())), digest, columns
        except OSError as error:
            self.discard([name])
            raise ResourceExhausted(f"a segment cannot be written: {error.strerror}") from None
        except BaseException:
            self.discard([name])
            raise
        return Written(name, digest, size, rows.num_rows)

    def sync(self) -> None:
        """Makes the names of the files durable, before a row refers to them."""
        assert self.directory is not None
        descriptor = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def store(self, name: str, data: bytes) -> None:
        """Stores a file that was fetched, durably and whole."""
        partial = self.path(f".{uuid.uuid4().hex}")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self.path(name))
        finally:
            partial.unlink(missing_ok=True)

    def data(self, name: str) -> bytes | None:
        """The bytes of a file; None if it is missing."""
        try:
            return self.path(name).read_bytes()
        except FileNotFoundError:
            return None

    def lacking(self, digests: Mapping[str, str]) -> dict[str, str]:
        """The files that the directory lacks, of some (name → digest)."""
        return {name: digest for name, digest in digests.items() if not self.path(name).exists()}

    def bring(self, digests: Mapping[str, str]) -> None:
        """Makes files ready to be read, several at a time; those of a directory are.

        Args:
            digests: Name → digest.
        """

    def put(self, name: str, data: bytes) -> None:
        """Writes a file that lay elsewhere, durably, under its own name."""
        self.prepare()
        self.store(name, data)

    def check(self, name: str, digest: str) -> frozenset[str]:
        """Checks that a file is the one that was written.

        Returns:
            The names of its columns.

        Raises:
            SegmentError: It is missing, damaged, or of a newer version.
        """
        path = self.path(name)
        try:
            found = _signature(path.stat())
            known = self._known.get(name)
            if known is not None and known[:2] == (found, digest):
                return known[2]
            with path.open("rb") as file:
                is_same = hashlib.file_digest(file, "sha256").hexdigest() == digest
            if not is_same:
                raise SegmentError(name, "is damaged: its digest is not that of what was written")
            columns = _columns(path, name)
        except FileNotFoundError:
            raise SegmentError(name, "is missing") from None
        except OSError as error:
            raise SegmentError(name, f"cannot be read: {error.strerror}") from None
        self._known[name] = found, digest, columns
        return columns

    def read(self, written: Written, columns: Collection[str] | None = None) -> pa.Table:
        """The rows of a file, without columns that follow from others.

        Args:
            columns: The columns that are read, of those that the file has; None for all.

        Raises:
            SegmentError: It is missing, damaged, or of a newer version.
        """
        import pyarrow.parquet as pq

        self.check(written.name, written.digest)
        file = pq.ParquetFile(self.path(written.name))
        wanted = frozenset(file.schema_arrow.names if columns is None else columns) - ROUNDED_BOUNDS.keys()
        return file.read([name for name in file.schema_arrow.names if name in wanted])

    def discard(self, names: Collection[str]) -> None:
        """Deletes files, if they are there."""
        for name in names:
            with contextlib.suppress(OSError):
                self.path(name).unlink(missing_ok=True)
            self.being_written.discard(name)
            self._known.pop(name, None)

    def names(self) -> set[str]:
        """Names of all files that are kept."""
        if self.directory is None or not self.directory.is_dir():
            return set()
        return {entry.name for entry in os.scandir(self.directory) if entry.name.endswith(SUFFIX)}

    def keep(self, names: Collection[str]) -> None:
        """Notes that rows name these files now, or that nobody will commit them."""
        self.being_written.difference_update(names)

    def expect(self, writer: object) -> None:
        """Notes that a capture has files written of which it is told later: those that appear meanwhile stay."""
        self._writers.setdefault(writer, time.monotonic())

    def expect_no_more(self, writer: object) -> None:
        """Notes that a capture is told of no more files."""
        self._writers.pop(writer, None)

    def collect(self, used: Collection[str], grace_seconds: float = GRACE_SECONDS) -> int:
        """Deletes the files that no row names.

        Args:
            used: Names of the files that are in use.
            grace_seconds: For how long no row named the files that are deleted, at least. Files that may be of a
                capture that goes on stay.

        Returns:
            The number of files that were deleted.
        """
        now, among = time.monotonic(), frozenset(used)
        left = self.names() - among - self.being_written - self.to_ship
        self._left = {name: self._left.get(name, now) for name in left}
        begun = min(self._writers.values(), default=now)
        doomed = [name for name, since in self._left.items() if now - since >= grace_seconds and since <= begun]
        self.discard(doomed)
        return len(doomed)


def new_name() -> str:
    """A name for a file that is written now."""
    return f"{uuid.uuid4().hex}{SUFFIX}"


def write_parquet(rows: pa.Table, file: object) -> frozenset[str]:
    """Writes rows as a segment: zstd, with the statistics by which readers skip row groups. As a rule a row group has
    the rows of one column. Columns without values are left out; rows of columns get the ranges of their bounds
    (`predicates.float_ranges`), as streams of bytes, of which the leading ones compress well.

    Returns:
        The names of the columns that are in the file.
    """
    import pyarrow.parquet as pq

    rows = with_ranges(rows)
    rows = rows.select([name for name in rows.column_names if rows[name].null_count < rows.num_rows])
    group_rows, is_of_columns = _FILES_GROUP_ROWS, True
    if "column_id" in rows.column_names:
        of_column = -(-rows.num_rows // max(1, pc.count_distinct(rows["column_id"]).as_py()))
        group_rows = min(_MOST_GROUP_ROWS, max(_LEAST_GROUP_ROWS, of_column))
        is_of_columns = group_rows <= of_column
    distinct = _DISTINCT if is_of_columns else _DISTINCT - {"file_path"}
    schema = rows.schema.with_metadata({_VERSION_KEY: str(VERSION).encode()})
    pq.write_table(
        rows.replace_schema_metadata(schema.metadata),
        file,
        row_group_size=group_rows,
        compression="zstd",
        use_dictionary=[name for name in rows.column_names if name not in distinct],
        use_byte_stream_split=[name for name in rows.column_names if name in ROUNDED_BOUNDS],
        write_statistics=[name for name in rows.column_names if name not in _UNORDERED],
        data_page_size=_PAGE_BYTES,
        store_schema=False,
    )
    return frozenset(rows.column_names)


def _columns(path: Path, name: str) -> frozenset[str]:
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(path)
    except (pa.ArrowException, ValueError):
        raise SegmentError(name, "is not a Parquet file") from None
    version = (metadata.metadata or {}).get(_VERSION_KEY, b"0")
    if not version.isdigit() or int(version) > VERSION:
        raise SegmentError(name, f"is of version {version.decode(errors='replace')}, this statflight reads {VERSION}")
    return frozenset(metadata.schema.to_arrow_schema().names)


def _signature(found: os.stat_result) -> _Signature:
    return found.st_ino, found.st_size, found.st_mtime_ns


def unusable(location: str, reason: str) -> InvalidArgument:
    """The error of a directory or bucket that cannot be used."""
    return InvalidArgument(
        f'segments: "{location}" cannot be used: {reason}',
        code="DATABASE",
        hint="name a directory or bucket of this server alone, which it may write",
    )
