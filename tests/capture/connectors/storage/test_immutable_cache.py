"""Cache of immutable files: LRU with a byte budget, separate for each connector."""

from __future__ import annotations

from capture.connectors.spi import ConnectorConfig
from capture.connectors.storage.immutable_cache import OVERHEAD_BYTES, scope
from store.duckdb.lru import LruCache


def test_least_recently_used_value_is_evicted_first():
    cache: LruCache[str, int] = LruCache(1000, OVERHEAD_BYTES)
    cache.put("a", 1, 100)
    cache.put("b", 2, 100)
    cache.put("c", 3, 100)
    assert cache.get("a") == 1
    cache.put("d", 4, 100)
    assert [cache.get(key) for key in "abcd"] == [1, None, 3, 4]
    assert cache.size <= cache.limit


def test_value_above_the_limit_is_not_cached_and_evicts_no_other():
    cache: LruCache[str, int] = LruCache(1000, OVERHEAD_BYTES)
    cache.put("a", 1, 100)
    cache.put("b", 2, 5000)
    assert (cache.get("a"), cache.get("b")) == (1, None)
    cache.put("a", 3, 5000)  # the older value is outdated
    assert cache.get("a") is None and cache.size == 0


def test_replaced_value_counts_once():
    cache: LruCache[str, int] = LruCache(1000, OVERHEAD_BYTES)
    for value in range(10):
        cache.put("a", value, 700)
    assert cache.get("a") == 9
    cache.clear()
    assert cache.get("a") is None and cache.size == 0


def test_connectors_with_other_options_have_separate_scopes():
    one = ConnectorConfig("c", "iceberg", "/lake", {"s3.access-key-id": "a"})
    assert scope(one) == scope(ConnectorConfig("c", "iceberg", "/lake", {"s3.access-key-id": "a"}))
    others = [
        ConnectorConfig("c", "iceberg", "/lake", {"s3.access-key-id": "b"}),
        ConnectorConfig("c", "iceberg", "/lake", {}),
        ConnectorConfig("d", "iceberg", "/lake", {"s3.access-key-id": "a"}),
        ConnectorConfig("c", "iceberg", "/other", {"s3.access-key-id": "a"}),
    ]
    assert len({scope(config) for config in (one, *others)}) == 5
