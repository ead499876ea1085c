"""Access to Spark's session catalog through the JVM of a classic session: registered tables and their statistics.

Each py4j call, and each part of a Java name, costs a round trip of a fraction of a millisecond. So classes are looked
up once per session, and all statistics of a table are sent as one string.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from store.model.errors import InvalidArgument, NotFound, UpstreamError

VERSION: Final = "2"  # version of Spark's CatalogColumnStat
_SIZE, _ROWS = " size", " rows"  # pseudo-columns, used to create Scala numbers in the JVM
_CHANGED_AT: Final = "transient_lastDdlTime"  # seconds, in a Hive metastore
_ESCAPES: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
_DISTINCT: Final = re.compile(r"CatalogColumnStat\((?:None|Some\((\d+)\)),")  # as Spark prints column statistics
_CATALYST: Final = "org.apache.spark.sql.catalyst.catalog"


class SessionCatalog:
    """The session catalog of one Spark session.

    Raises:
        InvalidArgument: The session is a Spark Connect session.
    """

    def __init__(self, session: Any) -> None:
        if not hasattr(session, "_jsparkSession"):
            raise InvalidArgument(
                "spark: a Spark Connect session cannot access the catalog's statistics",
                hint="run a worker with a classic session: --spark-master local[*], or that of a cluster",
            )
        self.session = session
        self._state = session._jsparkSession.sessionState()
        self._catalog = self._state.catalog()
        self._classes: dict[str, Any] = {}  # name → Java class
        self._known: dict[str, Any] = {}  # location → identifier of a registered table

    @classmethod
    def of(cls, session: Any) -> SessionCatalog:
        """The catalog of a session, cached in the session."""
        catalog = getattr(session, "_statflight_catalog", None)
        if catalog is None:
            catalog = cls(session)
            session._statflight_catalog = catalog
        return catalog

    # Tables.

    def by_name(self, name: str) -> Any:
        """Spark's `CatalogTable` with a name.

        Raises:
            NotFound: The table does not exist.
        """
        try:
            return self._catalog.getTableMetadata(self._state.sqlParser().parseTableIdentifier(name))
        except Exception:  # py4j wraps Spark's errors
            raise NotFound(
                f'options.table: Spark\'s session catalog has no table "{name}"',
                code="UNKNOWN_TABLE",
                hint="name it as db.table; a name with a dot is quoted by `",
                params={"field": "options.table"},
            ) from None

    def by_location(self, location: str) -> Any | None:
        """Spark's `CatalogTable` registered at a location; None if there is none."""
        wanted = plain_location(location)
        if (identifier := self._known.get(wanted)) is not None:
            try:
                table = self._catalog.getTableMetadata(identifier)
            except Exception:  # dropped meanwhile
                table = None
            if table is not None and location_of(table) == wanted:
                return table
        self._known = {}
        for table in self._registered():
            if at := location_of(table):
                self._known.setdefault(at, table.identifier())
                if at == wanted:
                    return table
        return None

    def _registered(self) -> Iterator[Any]:
        for database in self.as_java(self._catalog.listDatabases()):
            for identifier in self.as_java(self._catalog.listTables(database)):
                try:
                    yield self._catalog.getTableMetadata(identifier)
                except Exception:  # noqa: S112  a temporary view, or a table dropped meanwhile
                    continue

    def schema(self, table: Any) -> Any:
        """Spark's `StructType` of a registered table.

        Raises:
            UpstreamError: The catalog does not have it, as of Delta tables, and the table cannot be read.
        """
        schema = table.schema()
        if schema.isEmpty():
            try:
                schema = self.session.table(table.identifier().quotedString())._jdf.schema()
            except Exception as error:
                raise failure(error) from None
        return schema

    # Statistics.

    def fresh(self, table: Any) -> Any:
        """Reads a registered table again.

        Raises:
            UpstreamError: The catalog cannot be read.
        """
        try:
            return self._catalog.getTableMetadata(table.identifier())
        except Exception as error:
            raise failure(error) from None

    def distinct(self, statistics: Any) -> dict[str, int | None]:
        """Column → number of distinct values; None if unknown."""
        columns = statistics.colStats()
        if columns.isEmpty():
            return {}
        names = columns.keys().mkString("\0").split("\0")
        counts = _DISTINCT.findall(columns.values().mkString())
        return {name: int(count) if count else None for name, count in zip(names, counts, strict=True)}

    def put(self, identifier: Any, statistics: Any | None) -> None:
        """Replaces a table's statistics by the output of `new_statistics`, or by none, in one catalog call."""
        self._catalog.alterTableStats(identifier, self._option(statistics))

    def new_statistics(
        self, table: str, size_bytes: int, row_count: int | None, columns: Mapping[str, Mapping[str, object]]
    ) -> Any:
        """Creates Spark's `CatalogStatistics`.

        Args:
            columns: Column → entries of Spark's `CatalogColumnStat`; None values are left out.
        """
        statistics = dict(columns) | {_SIZE: {"distinctCount": size_bytes}}
        if row_count is not None:
            statistics[_ROWS] = {"distinctCount": row_count}
        lines = []
        for name, entries in statistics.items():
            known = {"version": VERSION} | {key: value for key, value in entries.items() if value is not None}
            lines += [f"{_escaped(f'{name}.{key}')}={_escaped(str(value))}\n" for key, value in known.items()]
        properties = self._class("java.util.Properties")()
        properties.load(self._class("java.io.StringReader")("".join(lines)))
        entries_of = self._class("org.apache.spark.api.python.PythonUtils").toScalaMap(properties)
        parse = self._class(f"{_CATALYST}.CatalogColumnStat").fromMap
        stats = self._class("java.util.HashMap")()
        for name in columns:
            stats.put(name, parse(table, name, entries_of).get())
        # By reflection, because py4j converts a BigInt to a Python int, which the constructor rejects.
        arguments = self._class("java.util.ArrayList")()
        arguments.addAll(self.as_java(parse(table, _SIZE, entries_of).get().distinctCount().toList()))
        whole = parse(table, _ROWS, entries_of).get().distinctCount() if row_count is not None else self._option(None)
        arguments.add(whole)
        arguments.add(self._class("org.apache.spark.api.python.PythonUtils").toScalaMap(stats))
        return self._constructor.newInstance(arguments.toArray())

    def histogram(self, content: bytes) -> str:
        """Compresses and encodes a histogram from `spark_histograms.serialized` in Spark's text form."""
        buffer = self._class("java.io.ByteArrayOutputStream")()
        out = self._class("net.jpountz.lz4.LZ4BlockOutputStream")(buffer)
        out.write(content)
        out.close()
        return base64.b64encode(buffer.toByteArray()).decode()

    def check(self, statistics: Any, schema: Any) -> None:
        """Checks that Spark can plan with statistics: that bounds are values of the columns' types.

        Raises:
            UpstreamError: Spark cannot.
        """
        attributes = self._class("org.apache.spark.sql.catalyst.types.DataTypeUtils").toAttributes(schema)
        try:
            statistics.toPlanStats(attributes, True)
        except Exception as error:
            raise failure(error) from None

    @property
    def broadcast_bytes(self) -> int:
        """Estimated size in bytes up to which Spark broadcasts a table of a join."""
        text = self.session.conf.get("spark.sql.autoBroadcastJoinThreshold")
        return int(self._class("org.apache.spark.network.util.JavaUtils").byteStringAsBytes(str(text)))

    # The JVM.

    def as_java(self, collection: Any) -> Any:
        """Converts a Scala collection to one that Python can iterate."""
        return self._class("scala.jdk.javaapi.CollectionConverters").asJava(collection)

    def _option(self, value: Any) -> Any:
        return self._class("scala.Option").apply(value)

    @cached_property
    def _constructor(self) -> Any:
        loader = self._class("java.lang.Thread").currentThread().getContextClassLoader()
        name = f"{_CATALYST}.CatalogStatistics"
        (constructor,) = self._class("java.lang.Class").forName(name, True, loader).getConstructors()
        return constructor

    def _class(self, name: str) -> Any:
        java_class = self._classes.get(name)
        if java_class is None:
            java_class = self.session._jvm
            for part in name.split("."):
                java_class = getattr(java_class, part)
            self._classes[name] = java_class
        return java_class


def name_of(table: Any) -> str:
    """The full name of a registered table."""
    return str(table.identifier().unquotedString())


def statistics_of(table: Any) -> Any | None:
    """Spark's `CatalogStatistics` of a registered table; None if it has none."""
    statistics = table.stats()
    return statistics.get() if statistics.isDefined() else None


def row_count_of(statistics: Any) -> int | None:
    """The row count of Spark's `CatalogStatistics`; None if unknown."""
    count = statistics.rowCount()
    return int(str(count.get())) if count.isDefined() else None


def changed_at(table: Any) -> datetime | None:
    """Time of the last change of a registered table's entry, or of its creation if the catalog records only that (an
    in-memory catalog has no older statistics); None if unknown."""
    changed = table.properties().get(_CHANGED_AT)
    if changed.isDefined() and str(changed.get()).isdecimal():
        return datetime.fromtimestamp(int(changed.get()), UTC)
    made_ms = int(table.createTime())
    return datetime.fromtimestamp(made_ms / 1000, UTC) if made_ms > 0 else None


def location_of(table: Any) -> str:
    """The normalized location of a registered table; empty if it has none."""
    where = table.storage().locationUri()
    return plain_location(where.get().toString()) if where.isDefined() else ""


def plain_location(uri: str) -> str:
    """Normalizes a location: without `file:` and trailing slash, percent-decoded, `s3a:` and `s3n:` as `s3:`."""
    parts = urlsplit(uri)
    if parts.scheme in ("", "file"):
        return unquote(parts.path).rstrip("/")
    scheme = {"s3a": "s3", "s3n": "s3"}.get(parts.scheme, parts.scheme)
    return f"{scheme}://{parts.netloc}{unquote(parts.path)}".rstrip("/")


def failure(error: Exception) -> Exception:
    """Translates an error of the JVM: to PermissionError if writing is denied, else to UpstreamError."""
    text = str(error)
    if type(error).__module__.partition(".")[0] not in ("py4j", "pyspark"):
        return error
    if "Permission denied" in text or "AccessControlException" in text or "read-only" in text.lower():
        return PermissionError()
    line = next((part for part in text.splitlines() if "Exception: " in part), text.splitlines()[0])
    return UpstreamError(f"spark: the session catalog refused: {line.rpartition('Exception: ')[2][:200]}")


def _escaped(text: str) -> str:
    """Escapes a key or value for `java.util.Properties`."""
    return re.sub(r"[^\w]", lambda match: _ESCAPES.get(match[0], "\\" + match[0]), text)
