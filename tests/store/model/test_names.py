"""Names of tables and columns."""

import pytest

from store.model.names import column_key, dotted_name


@pytest.mark.parametrize(
    ("path", "key", "name"),
    [
        (("a",), "a", "a"),
        (("a", "b"), "a.b", "a.b"),
        (("a.b",), '"a.b"', "a.b"),
        (("s", "a.b", "c"), 's."a.b".c', "s.a.b.c"),
        (('a"b',), '"a""b"', 'a"b'),
    ],
)
def test_column_key_quotes_dotted_parts_and_the_dotted_name_does_not(path, key, name):
    assert column_key(path) == key
    assert dotted_name(key) == name
