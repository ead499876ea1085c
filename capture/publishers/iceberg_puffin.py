"""`iceberg`: theta sketches in a Puffin file that the table's metadata names."""

from __future__ import annotations

from typing import Any, ClassVar

from capture.publishers import iceberg
from capture.publishers.spi import Draft, Held, Publisher
from store.errors import InvalidArgument


class IcebergPublisher(Publisher):
    home: ClassVar[str] = "iceberg"
    formats: ClassVar[frozenset[str]] = frozenset({"iceberg"})
    sketches: ClassVar[frozenset[str]] = frozenset({"NDV"})

    def prepare(self) -> Draft:
        left_out = dict(self.statistics.left_out)
        columns = []
        for column in self.statistics.columns:
            if column.theta is None or column.ndv is None:
                left_out[column.name] = "no NDV sketch is stored"
            else:
                columns.append(column)
        thetas = [(column.column_id, column.theta, column.ndv) for column in columns]
        location = self.destination.connector.describe(self.statistics.namespace, self.statistics.name).location
        distinct = {column.name: column.distinct for column in columns}
        return Draft(self.statistics.snapshot_id, location, distinct, left_out, thetas)

    def write(self, draft: Draft) -> int | None:
        connector: Any = self.destination.connector
        of = self.statistics
        iceberg.publish(connector, of.namespace, of.name, of.snapshot_id, draft.content)
        return None

    def read(self) -> Held | None:
        return None

    def verify(self, draft: Draft) -> None: ...

    def withdraw(self) -> bool:
        raise InvalidArgument("iceberg: withdrawing is not built")
