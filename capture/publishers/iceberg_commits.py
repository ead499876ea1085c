"""Commits statistics to Iceberg tables in the way of each catalog; the rest of the metadata is unchanged.

| catalog | commit |
|---|---|
| REST | `set-statistics` / `remove-statistics`: the server writes the metadata |
| SQL | writes a metadata file, then updates the table's row if it still points to the old file |
| none, local directory | creates the next metadata file exclusively, then updates `version-hint.text` if it exists |
| Glue | writes a metadata file, then updates the table's parameter if the entry's version id is unchanged |
| Hive and others | pyiceberg's own commit |

Except for REST and pyiceberg's commit, the metadata file is edited as JSON, so format v3, types and blobs not in
pyiceberg's model are preserved.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final

from capture.connectors.iceberg.tables import LoadedTable
from capture.connectors.storage.places import Place
from capture.publishers.files import create_file, read_file, replace_file
from capture.publishers.spi import LostRace
from store.model.errors import Conflict, InvalidArgument, UpstreamError

Statistics = Mapping[str, Any]
"""An entry of the metadata's `statistics`, with its JSON names (`snapshot-id`, `statistics-path`, …)."""

_NAME: Final = re.compile(r"(?P<v>v?)(?P<number>\d+)(?P<rest>.*?)(?:\.gz)?\.metadata\.json(?:\.gz)?")
_HINT: Final = "version-hint.text"
_GLUE_ENTRY: Final = (
    "Name",
    "Description",
    "Owner",
    "Retention",
    "StorageDescriptor",
    "PartitionKeys",
    "TableType",
    "ViewOriginalText",
    "ViewExpandedText",
    "TargetTable",
)
_LOG_ENTRIES: Final = 100  # default of write.metadata.previous-versions-max


class UnknownState(UpstreamError):
    """The outcome of a commit is unknown, so its files must be kept."""

    code = "UNKNOWN_STATE"


def commit_statistics(loaded: LoadedTable, snapshot_id: int, entry: Statistics | None, folder: Place | None) -> None:
    """Sets or removes the statistics of a snapshot.

    Args:
        loaded: The table for which the entry was built.
        entry: Statistics of the snapshot; None removes them.
        folder: `metadata/` of a table without a catalog that is a directory, else None.

    Raises:
        LostRace: The table changed meanwhile; nothing was committed.
        UnknownState: The catalog failed during the commit.
        InvalidArgument: The table does not support commits.
    """
    if loaded.handle is None:
        if folder is None:
            raise InvalidArgument(
                f'iceberg: table "{loaded}" is one metadata file, which cannot be committed to',
                hint="connect its directory or its catalog",
            )
        _commit_to_directory(loaded, folder, _edited(loaded, snapshot_id, entry))
        return
    engine, glue = (getattr(loaded.handle.catalog, client, None) for client in ("engine", "glue"))
    if engine is not None:
        _commit_to_sql(loaded, engine, _edited(loaded, snapshot_id, entry))
    elif glue is not None:
        _commit_to_glue(loaded, glue, _edited(loaded, snapshot_id, entry))
    else:
        _commit_by_library(loaded, snapshot_id, entry)


def _edited(loaded: LoadedTable, snapshot_id: int, entry: Statistics | None) -> bytes:
    """The table's metadata document with the statistics of a snapshot replaced."""
    document = loaded.io.read_document(loaded.location)
    before = int(document.get("last-updated-ms") or 0)
    statistics = [other for other in document.get("statistics") or () if other.get("snapshot-id") != snapshot_id]
    document["statistics"] = [*statistics, *([dict(entry)] if entry is not None else [])]
    document["last-updated-ms"] = max(int(time.time() * 1000), before)
    limit = str((document.get("properties") or {}).get("write.metadata.previous-versions-max", ""))
    log = [*(document.get("metadata-log") or ()), {"metadata-file": loaded.location, "timestamp-ms": before}]
    document["metadata-log"] = log[-(int(limit) if limit.isdecimal() and int(limit) else _LOG_ENTRIES) :]
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _commit_to_directory(loaded: LoadedTable, folder: Place, document: bytes) -> None:
    if not folder.is_local:
        raise InvalidArgument(
            f'iceberg: table "{loaded}" is a directory of an object store without a catalog: no commit to it is atomic',
            hint="publish through its catalog",
        )
    name = loaded.location.rpartition("/")[2]
    match = _NAME.fullmatch(name)
    if match is None:
        raise InvalidArgument(f'iceberg: table "{loaded}": metadata file "{name}" has no version number')
    number = int(match["number"]) + 1
    if match["v"]:
        new = f"v{number}.metadata.json"
    else:  # derived from the old name, so that only one writer can create the successor
        new = f"{number:05d}-{uuid.uuid5(uuid.NAMESPACE_OID, name)}.metadata.json"
    if not create_file(folder.below(new), document):
        raise LostRace(f"iceberg: {new} was created by another writer")
    hint = read_file(folder.below(_HINT))
    if hint is not None:
        current = hint.decode("utf-8", "replace").strip()
        replace_file(folder.below(_HINT), (str(number) if current.isdecimal() else new).encode())


def _commit_to_sql(loaded: LoadedTable, engine: Any, document: bytes) -> None:
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy import update
    from sqlalchemy.exc import SQLAlchemyError

    assert loaded.handle is not None
    old, new = loaded.location, _write_next(loaded, document)
    *namespace, name = loaded.handle.name()
    statement = (
        update(IcebergTables)
        .where(
            IcebergTables.catalog_name == loaded.handle.catalog.name,
            IcebergTables.table_namespace == ".".join(namespace),
            IcebergTables.table_name == name,
            IcebergTables.metadata_location == old,
        )
        .values(metadata_location=new, previous_metadata_location=old)
    )
    try:
        with engine.begin() as connection:
            changed = connection.execute(statement).rowcount
    except SQLAlchemyError as error:
        _delete_quietly(loaded, new)
        text = str(error).lower()
        if "readonly" in text or "permission denied" in text:
            raise PermissionError from None
        if "locked" in text or "deadlock" in text or "serializ" in text:
            raise LostRace("iceberg: the catalog is busy with another writer") from None
        raise UpstreamError("iceberg: the catalog's database rejected the commit") from None
    if changed != 1:
        _delete_quietly(loaded, new)
        raise LostRace(f'iceberg: table "{loaded}" was changed by another writer')


def _commit_to_glue(loaded: LoadedTable, glue: Any, document: bytes) -> None:
    from botocore.exceptions import BotoCoreError, ClientError

    assert loaded.handle is not None
    database, name = loaded.handle.name()
    try:
        registered = glue.get_table(DatabaseName=database, Name=name)["Table"]
        if registered.get("Parameters", {}).get("metadata_location") != loaded.location:
            raise LostRace(f'iceberg: table "{loaded}" was changed by another writer')
    except (ClientError, BotoCoreError):
        raise UpstreamError("iceberg: Glue cannot be read for the table") from None
    new = _write_next(loaded, document)
    entry = {key: registered[key] for key in _GLUE_ENTRY if key in registered}
    entry["Parameters"] = registered["Parameters"] | {
        "metadata_location": new,
        "previous_metadata_location": loaded.location,
    }
    version = {"VersionId": registered["VersionId"]} if registered.get("VersionId") else {}
    try:
        glue.update_table(DatabaseName=database, TableInput=entry, SkipArchive=True, **version)
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500) >= 500:
            raise UnknownState("iceberg: Glue failed; it is unknown whether it applied the commit") from None
        _delete_quietly(loaded, new)
        if code == "ConcurrentModificationException":
            raise LostRace(f'iceberg: table "{loaded}" was changed by another writer') from None
        if code.startswith("AccessDenied"):
            raise PermissionError from None
        raise UpstreamError(f"iceberg: Glue rejected the commit ({code})") from None
    except BotoCoreError:
        raise UnknownState("iceberg: Glue failed; it is unknown whether it applied the commit") from None


def _write_next(loaded: LoadedTable, document: bytes) -> str:
    """Writes the next metadata file, not referenced yet; returns its location."""
    folder, _, name = loaded.location.rpartition("/")
    match = _NAME.fullmatch(name)
    location = f"{folder}/{int(match['number']) + 1 if match else 1:05d}-{uuid.uuid4()}.metadata.json"
    with loaded.io.new_output(location).create() as stream:
        stream.write(document)
    return location


def _commit_by_library(loaded: LoadedTable, snapshot_id: int, entry: Statistics | None) -> None:
    from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ServerError
    from pyiceberg.table.statistics import StatisticsFile

    assert loaded.handle is not None
    if unsupported := [] if loaded.server_commits else loaded.io.lost_on_commit(loaded.location):
        raise Conflict(
            f'iceberg: the metadata of table "{loaded}" has {", ".join(unsupported)}, which this commit would lose'
        )
    try:
        with loaded.handle.update_statistics() as update:
            if entry is None:
                update.remove_statistics(snapshot_id)
            else:
                update.set_statistics(StatisticsFile.model_validate(entry))
    except CommitFailedException:
        raise LostRace(f'iceberg: table "{loaded}" was changed by another writer') from None
    except (CommitStateUnknownException, ServerError, ConnectionError, TimeoutError):
        raise UnknownState("iceberg: the catalog failed; it is unknown whether it applied the commit") from None
    except NotImplementedError:
        raise InvalidArgument(
            f'iceberg: table "{loaded}" has format v{loaded.metadata.format_version}, which cannot be committed to '
            "this catalog yet",
            hint="publish through a REST or SQL catalog",
        ) from None


def _delete_quietly(loaded: LoadedTable, path: str) -> None:
    with contextlib.suppress(Exception):  # unreferenced, so the next sweep deletes it
        loaded.io.delete(path)
