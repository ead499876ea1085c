"""Commands that move all statistics to another server: export, import."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from flight_server.faces.commands.connection import CONNECTION, ConnectionOptions, connect
from flight_server.faces.commands.output import misuse, say
from flight_server.faces.commands.parameters import argument, option

if TYPE_CHECKING:
    from store.transfer.manifest import Manifest


def export(
    directory: Annotated[Path, argument(metavar="DIR", help="A new directory, on this machine.")],
    db: Annotated[
        Path | None, option(metavar="FILE", help="A database that no server uses, of any layout, in place of a server.")
    ] = None,
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """Write all statistics, the catalog and checks as Parquet; `import` reads them. Secrets are not in it."""
    from store.transfer.directory import export_file

    target = directory.expanduser()
    if db is not None:
        if _is_given("server"):
            misuse("--db and --server: name one")
        _tell(target, export_file(db.expanduser(), target))
        return
    _export_from_server(target, connection)


def _export_from_server(target: Path, connection: ConnectionOptions) -> None:
    from store.transfer.directory import check_new, new_directory, write
    from store.transfer.export import Piece

    check_new(target)
    with connect(connection) as client:
        batches = client.get({"export": {}}, stream=True)  # before the directory, which only an answer deserves
        pieces = (Piece(**row) for batch in batches for row in batch.to_pylist())
        with new_directory(target) as made:
            _tell(target, write(pieces, made))


def import_(
    directory: Annotated[Path, argument(metavar="DIR", help="What `export` has written, on this machine.")],
    connection: ConnectionOptions = CONNECTION,
) -> None:
    """Store what `export` has written in an empty server."""
    from store.transfer.directory import read
    from store.transfer.manifest import check_directory

    source = directory.expanduser()
    manifest = check_directory(source)
    with connect(connection) as client:
        import pyarrow as pa

        schema = pa.schema([("file", pa.string()), ("data", pa.binary())])
        batches = (pa.record_batch([[each.file], [each.data]], schema=schema) for each in read(manifest, source))
        stored = client.put_rows({"import": {}}, pa.RecordBatchReader.from_batches(schema, batches))
    say(f"{source}: {stored['records']:,} records of {stored['tables']:,} tables")


def _is_given(parameter: str) -> bool:
    """True if an option stands on the command line."""
    import click
    from click.core import ParameterSource

    return click.get_current_context().get_parameter_source(parameter) is ParameterSource.COMMANDLINE


def _tell(target: Path, manifest: Manifest) -> None:
    from store.transfer.contents import RECORDS
    from store.transfer.manifest import path_of

    records = sum(manifest.files[path_of(flight)].rows for flight in RECORDS)
    size = sum(entry.bytes for entry in manifest.files.values())
    say(f"{target}: {records:,} records, {size / 1e6:.1f} MB")
