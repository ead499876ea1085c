"""The tables that the publishers' contracts build, published over and over by a process of its own, which imports one
home's library alone."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from capture.connectors.spi import ConnectorConfig
from capture.publishers.publishing import publish
from tests.capture.publishers.contract import PublisherContract, Table, rows

CONTRACTS = {"iceberg": "test_iceberg", "lance": "test_lance", "paimon": "test_paimon", "trino": "test_trino_delta"}


def contract_of(home: str) -> PublisherContract:
    return import_module(f"tests.capture.publishers.{CONTRACTS[home]}").TestContract()


def publish_repeatedly(home: str, root: Path, count: int) -> None:
    """Publishes `count` times, alternating the columns; the process may be killed meanwhile."""
    table = reopened(home, root)
    print("ready", flush=True)
    for number in range(count):
        statistics = table.statistics()
        first, second = statistics.columns
        columns = (first, second) if number % 2 else (second,)
        publish(table.publisher(table.statistics(columns=columns)))


def reopened(home: str, root: Path) -> Table:
    """The table that the home's contract built below a directory."""
    paths = {"iceberg": "w/db/t", "lance": "dots", "paimon": "sales.db/notes", "trino": "events"}
    configs = {
        "iceberg": ConnectorConfig("c", "iceberg", f"sqlite:///{root / 'c.db'}", {"type": "sql", "name": "lake"}),
        "lance": ConnectorConfig("c", "lance", str(root)),
        "paimon": ConnectorConfig("c", "paimon", str(root)),
        "trino": ConnectorConfig("c", "delta", str(root)),
    }
    names = {
        "iceberg": ("db", "t"),
        "lance": ("default", "dots"),
        "paimon": ("sales", "notes"),
        "trino": ("default", "events"),
    }
    return Table(home, configs[home], *names[home], root / paths[home], rows(0, 150))
