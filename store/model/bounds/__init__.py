"""Canonical text of min and max (store/SEMANTICS.md §4): encoding, decoding and order.

Each operation has two equivalent forms: a scalar one, which is the reference, and one over Arrow arrays, which uses
Arrow kernels and NumPy and falls back to the scalar form for rare cases, once per distinct value. A value that the
logical type cannot represent (an unsigned integer above int64, a date after year 9999) has no bound: the scalar form
raises ValueError, the array form returns null, which means unknown.
"""

from store.model.bounds.columns import canonicalize_array, encode_array, finer, in_order, next_up, sort_keys
from store.model.bounds.java_floats import java_double, java_float
from store.model.bounds.scalar import REFUSE, BadBound, ZonePolicy, canonical, compare, decode, encode

__all__ = [
    "REFUSE",
    "BadBound",
    "ZonePolicy",
    "canonical",
    "canonicalize_array",
    "compare",
    "decode",
    "encode",
    "encode_array",
    "finer",
    "in_order",
    "java_double",
    "java_float",
    "next_up",
    "sort_keys",
]
