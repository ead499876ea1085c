"""A contract of lakes in an object store, for S3 in moto: requests counted, errors, many keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.connectors import open_connector
from capture.connectors.spi import ConnectorConfig
from capture.connectors.storage.places import open_place
from store.model.errors import StatflightError
from tests.integration.aws_server import SECRET
from tests.integration.fault_proxy import FaultProxy, fault_proxy
from tests.integration.test_object_stores import ROWS

FILES = 3
KEYS = 120  # more than a page of the proxy


@dataclass(frozen=True)
class Store:
    """A lake in a store: its root, options that lead to it and to the proxy, and how that cloud refuses requests.

    Attributes:
        most: Most requests of a first capture of `FILES` files.
    """

    root: str
    direct: dict[str, str]
    options: dict[str, str]
    proxy: FaultProxy
    slow_down: tuple[int, bytes]
    expired: tuple[int, bytes]
    secrets: tuple[str, ...]
    most: int = 12 + 3 * FILES

    def config(self, folder: str, **more: str) -> ConnectorConfig:
        return ConnectorConfig("c", "parquet", f"{self.root}/{folder}", self.options | more)

    def write(self, files: Mapping[str, bytes]) -> None:
        """Writes files, by path below the root, not through the proxy."""
        top = open_place(self.root, self.direct)

        def one(path: str) -> None:
            place = top.below(path)
            with place.file_system.open_output_stream(place.path) as out:
                out.write(files[path])

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(one, files))


def _xml(code: str) -> bytes:
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>told by the proxy</Message></Error>'.encode()


class StoreContract:
    """The tests of a store subclass this, with its fixture."""

    @pytest.fixture
    def store(self, request: pytest.FixtureRequest) -> Iterator[Store]:
        raise NotImplementedError
        yield

    @pytest.fixture
    def lake(self, store: Store) -> Store:
        """A store with a table `points` of `FILES` files in the folder `counted`."""
        store.write({f"counted/points/{number}.parquet": parquet() for number in range(FILES)})
        store.proxy.requests = []
        return store

    def test_a_capture_sends_few_requests(self, lake):
        assert rows_of(lake.config("counted")) == FILES * len(ROWS)
        first = len(lake.proxy.requests)
        assert first <= lake.most, lake.proxy.requests
        lake.proxy.requests = []
        assert rows_of(lake.config("counted")) == FILES * len(ROWS)
        footers = [request for request in lake.proxy.requests if request.startswith("GET") and ".parquet" in request]
        assert not footers and len(lake.proxy.requests) < first, "footers are cached"

    def test_each_request_may_fail_once(self, lake):
        lake.proxy.error, lake.proxy.once = lake.slow_down, True
        assert rows_of(lake.config("counted", timeout="60")) == FILES * len(ROWS)

    def test_a_store_that_is_too_busy_is_a_passing_error(self, lake):
        lake.proxy.error = lake.slow_down
        with pytest.raises(StatflightError) as refused:
            rows_of(lake.config("counted", timeout="1"))
        assert refused.value.retryable and "counted" in str(refused.value)

    def test_expired_credentials_are_named_and_not_shown(self, lake):
        lake.proxy.error = lake.expired
        with pytest.raises(StatflightError) as refused:
            rows_of(lake.config("counted", timeout="1"))
        assert "counted" in str(refused.value) and not any(secret in str(refused.value) for secret in lake.secrets)
        lake.proxy.error = None
        assert rows_of(lake.config("counted")) == FILES * len(ROWS)

    @pytest.mark.parametrize("keys", [KEYS, pytest.param(100_000, marks=pytest.mark.benchmark)])
    def test_a_listing_of_many_keys_is_complete(self, store, keys):
        data = parquet(1)
        store.write({f"many/points/{number:06}.parquet": data for number in range(keys)})
        store.proxy.requests = []
        connector = open_connector(store.config("many"))
        try:
            assert connector.list_tables("default") == ["points"]
            listed = len(store.proxy.requests)
            current = connector.enumerate_snapshots("default", "points").current_snapshot_id
            assert current is not None and listed <= 10 + keys // 100, store.proxy.requests[:20]
            native = connector.capture_snapshot_target_stats("default", "points", current, {"id": 1, "label": 2})
            assert native.data_file_count == native.row_count == keys
        finally:
            connector.close()


def parquet(rows: int = len(ROWS)) -> bytes:
    out = pa.BufferOutputStream()
    pq.write_table(ROWS[:rows], out)
    return out.getvalue().to_pybytes()


def rows_of(config: ConnectorConfig) -> int:
    """Row count that a capture of the table `points` finds."""
    connector = open_connector(config)
    try:
        current = connector.enumerate_snapshots("default", "points").current_snapshot_id
        assert current is not None
        native = connector.capture_snapshot_target_stats("default", "points", current, {"id": 1, "label": 2})
        return int(native.row_count or 0)
    finally:
        connector.close()


class TestS3(StoreContract):
    @pytest.fixture
    def store(self, aws: Any) -> Iterator[Store]:
        with fault_proxy(aws.endpoint) as proxy:
            options = aws.options | {"aws_endpoint": proxy.url}
            refusals = (503, _xml("SlowDown")), (400, _xml("ExpiredToken"))
            yield Store(f"s3://{aws.bucket}", aws.options, options, proxy, *refusals, (SECRET,))
