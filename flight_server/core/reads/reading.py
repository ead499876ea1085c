"""What answers reads, put together."""

from __future__ import annotations

from flight_server.core.config import Settings
from flight_server.core.reads.prewarm import Prewarmer
from flight_server.core.reads.records import RecordFinder
from flight_server.core.reads.scanner import Scanner
from flight_server.core.reads.slice_cache import SliceCache
from flight_server.core.reads.streams import Streams
from flight_server.core.reads.usage import Usage
from store.catalog.catalog import Catalog
from store.stats_store import DuckDBStatsStore


class Reading:
    """The scanner with its caches, and what it needs beside it.

    Attributes:
        streams: Bounds of the answers on their way.
        slices: Rows that are kept between reads.
        scanner: Answers scans.
        records: Finds records that answer a capture.
        usage: Counts reads.
        prewarmer: Warms caches after writes.
    """

    def __init__(self, settings: Settings, store: DuckDBStatsStore, catalog: Catalog):
        database = store.database
        self.streams = Streams(
            settings.max_streams,
            settings.stream_seconds,
            settings.max_stream_bytes,
            stall_seconds=settings.stream_stall_seconds,
        )
        self.slices = SliceCache(settings.cache_bytes)
        self.scanner = Scanner(database, catalog, self.slices, self.streams)
        self.records = RecordFinder(store, catalog, self.slices, self.scanner)
        self.usage = Usage(database, catalog)
        self.prewarmer = Prewarmer(self.scanner, self.usage)
