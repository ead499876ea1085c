"""Commits of statistics to Iceberg tables, each catalog in its own way; no other part of the metadata changes.

| kept by | commit |
|---|---|
| REST catalog | `set-statistics` / `remove-statistics`: the server writes the metadata |
| SQL catalog | a metadata file, and the row that points to it is changed if it still points to the one before |
| directory on a local disk | the next metadata file, created exclusively, then `version-hint.text` where there is one |
| Glue catalog | a metadata file, and the table's parameter, under the version id it was read with |
| Hive and others | pyiceberg's own commit |

The metadata file of all but the first and the last is edited as JSON: format v3, types and blobs that pyiceberg's model
does not know stay as they are.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final

from capture.connectors.iceberg.catalogs import LoadedTable
from capture.connectors.storage.places import Place
from capture.publishers.files import create_file, read_file, replace_file
from capture.publishers.spi import LostRace
from store.errors import Conflict, InvalidArgument, UpstreamError

Statistics = Mapping[str, Any]
"""An entry of the metadata's `statistics`, under its own names (`snapshot-id`, `statistics-path`, …)."""

_NAME: Final = re.compile(r"(?P<v>v?)(?P<number>\d+)(?P<rest>.*?)(?:\.gz)?\.metadata\.json(?:\.gz)?")
_HINT: Final = "version-hint.text"
_GLUE_ENTRY: Final = ("Name", "Description", "Owner", "Retention", "StorageDescriptor", "PartitionKeys", "TableType",
                      "ViewOriginalText", "ViewExpandedText", "TargetTable")  # fmt: skip
_LOG_ENTRIES: Final = 100  # default of write.metadata.previous-versions-max


class UnknownState(UpstreamError):
    """The catalog did not say whether it took the commit: files of it must stay."""

    code = "UNKNOWN_STATE"


def commit_statistics(loaded: LoadedTable, snapshot_id: int, entry: Statistics | None, folder: Place | None) -> None:
    """Sets the statistics of a snapshot, or removes them.

    Args:
        loaded: The table as it was when the entry was made.
        snapshot_id: The snapshot.
        entry: Its statistics; None removes them.
        folder: `metadata/` of a table that is a directory without a catalog, else None.

    Raises:
        LostRace: The table was changed meanwhile; nothing was committed.
        UnknownState: The catalog failed in the middle.
        InvalidArgument: The table takes no commit.
    """
    if loaded.handle is None:
        if folder is None:
            raise InvalidArgument(
                f'iceberg: table "{loaded}" is one metadata file, which takes no commit',
                hint="connect its directory, or its catalog",
            )  # fmt: skip
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
        )  # fmt: skip
    name = loaded.location.rpartition("/")[2]
    match = _NAME.fullmatch(name)
    if match is None:
        raise InvalidArgument(f'iceberg: table "{loaded}": metadata file "{name}" has no version number')
    number = int(match["number"]) + 1
    if match["v"]:
        new = f"v{number}.metadata.json"
    else:  # named after its predecessor, so that two writers cannot both follow it
        new = f"{number:05d}-{uuid.uuid5(uuid.NAMESPACE_OID, name)}.metadata.json"
    if not create_file(folder.below(new), document):
        raise LostRace(f"iceberg: {new} was made by another writer")
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
    except SQLAlchemyError as trouble:
        _forget(loaded, new)
        text = str(trouble).lower()
        if "readonly" in text or "permission denied" in text:
            raise PermissionError from None
        if "locked" in text or "deadlock" in text or "serializ" in text:
            raise LostRace("iceberg: the catalog is busy with another writer") from None
        raise UpstreamError("iceberg: the catalog's database refused the commit") from None
    if changed != 1:
        _forget(loaded, new)
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
        raise UpstreamError("iceberg: Glue does not answer for the table") from None
    new = _write_next(loaded, document)
    entry = {key: registered[key] for key in _GLUE_ENTRY if key in registered}
    entry["Parameters"] = registered["Parameters"] | {
        "metadata_location": new, "previous_metadata_location": loaded.location,
    }  # fmt: skip
    version = {"VersionId": registered["VersionId"]} if registered.get("VersionId") else {}
    try:
        glue.update_table(DatabaseName=database, TableInput=entry, SkipArchive=True, **version)
    except ClientError as trouble:
        code = trouble.response.get("Error", {}).get("Code", "")
        if trouble.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500) >= 500:
            raise UnknownState("iceberg: Glue failed and did not say whether it took the commit") from None
        _forget(loaded, new)
        if code == "ConcurrentModificationException":
            raise LostRace(f'iceberg: table "{loaded}" was changed by another writer') from None
        if code.startswith("AccessDenied"):
            raise PermissionError from None
        raise UpstreamError(f"iceberg: Glue refused the commit ({code})") from None
    except BotoCoreError:
        raise UnknownState("iceberg: Glue failed and did not say whether it took the commit") from None


def _write_next(loaded: LoadedTable, document: bytes) -> str:
    """Writes the next metadata file, which nothing names yet; its location."""
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
    if lost := [] if loaded.server_commits else loaded.io.lost_on_commit(loaded.location):
        raise Conflict(
            f'iceberg: the metadata of table "{loaded}" holds {", ".join(lost)}, which this commit would lose'
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
        raise UnknownState("iceberg: the catalog failed and did not say whether it took the commit") from None
    except NotImplementedError:
        raise InvalidArgument(
            f'iceberg: table "{loaded}" is of format v{loaded.metadata.format_version}, which cannot be committed to '
            "this catalog yet", hint="publish through a REST or SQL catalog",
        ) from None  # fmt: skip


def _forget(loaded: LoadedTable, path: str) -> None:
    with contextlib.suppress(Exception):  # a file that nothing names: the next sweep may have it
        loaded.io.delete(path)
