"""The worker's cache of immutable files: bounded by bytes, separate for each connector."""

from __future__ import annotations

from capture.connectors.spi import ConnectorConfig
from capture.connectors.storage.immutable_cache import OVERHEAD_BYTES, scope
from store.lru import LruCache


def test_the_least_recently_used_goes_first():
    held: LruCache[str, int] = LruCache(1000, OVERHEAD_BYTES)
    held.put("a", 1, 100)
    held.put("b", 2, 100)
    held.put("c", 3, 100)
    assert held.get("a") == 1
    held.put("d", 4, 100)
    assert [held.get(key) for key in "abcd"] == [1, None, 3, 4]
    assert held.size <= held.limit


def test_a_value_that_is_too_large_is_not_kept_and_takes_none_along():
    held: LruCache[str, int] = LruCache(1000, OVERHEAD_BYTES)
    held.put("a", 1, 100)
    held.put("b", 2, 5000)
    assert (held.get("a"), held.get("b")) == (1, None)
    held.put("a", 3, 5000)  # what was there is no longer true
    assert held.get("a") is None and held.size == 0


def test_a_value_put_again_counts_once():
    held: LruCache[str, int] = LruCache(1000, OVERHEAD_BYTES)
    for value in range(10):
        held.put("a", value, 700)
    assert held.get("a") == 9
    held.clear()
    assert held.get("a") is None and held.size == 0


def test_connectors_of_other_options_do_not_share():
    one = ConnectorConfig("c", "iceberg", "/lake", {"s3.access-key-id": "a"})
    assert scope(one) == scope(ConnectorConfig("c", "iceberg", "/lake", {"s3.access-key-id": "a"}))
    others = [
        ConnectorConfig("c", "iceberg", "/lake", {"s3.access-key-id": "b"}),
        ConnectorConfig("c", "iceberg", "/lake", {}),
        ConnectorConfig("d", "iceberg", "/lake", {"s3.access-key-id": "a"}),
        ConnectorConfig("c", "iceberg", "/other", {"s3.access-key-id": "a"}),
    ]
    assert len({scope(config) for config in (one, *others)}) == 5
