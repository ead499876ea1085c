"""Bounds of single texts and values, and of arrays, checked against each other."""

from __future__ import annotations

import uuid

import pyarrow as pa
import pytest

from store.model.bounds import BadBound, ZonePolicy, canonical, canonicalize_array, encode_array
from store.model.logical_types import parse, to_arrow


def texts(*values):
    return pa.array(values, pa.string())


def encoded(array, type):
    result = encode_array(array, parse(type))
    result.validate(full=True)
    assert result.type == pa.string()
    return result.to_pylist()


def text_of(value, lt):
    """Canonical text of a value of Python."""
    carried = value.bytes if isinstance(value, uuid.UUID) else value
    return encode_array(pa.array([carried], to_arrow(lt)), lt)[0].as_py()


def canonical_text(text, type, policy=None):
    """Canonical text of a bound, equal in both forms; None if both refuse it."""
    policy = policy or ZonePolicy()
    try:
        one = canonical(text, parse(type), policy)
    except ValueError as error:
        with pytest.raises(BadBound) as bad:
            canonicalize_array(texts(None, text), parse(type), policy)
        assert (bad.value.index, bad.value.text, bad.value.reason) == (1, text, str(error))
        return None
    assert canonicalize_array(texts(text, None, text), parse(type), policy).to_pylist() == [one, None, one]
    return one
