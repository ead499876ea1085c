"""Canonical min and max text (store/SEMANTICS.md §4): to it, from it, and the order of what it means.

Each operation has two forms of one meaning: a scalar one, which is the reference, and one over Arrow arrays, which
takes whole columns through Arrow kernels and NumPy and hands only what is rare to the scalar form, once per distinct
value. A value that the logical type cannot hold (an unsigned integer above int64, a date after year 9999) has no
bound: the scalar form raises ValueError, the array form leaves null, which reads as unknown.
"""

from store.bounds.columns import canonicalize_array, encode_array, in_order, sort_keys
from store.bounds.java_floats import java_double, java_float
from store.bounds.scalar import REFUSE, BadBound, ZonePolicy, canonical, compare, decode, encode

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
    "in_order",
    "java_double",
    "java_float",
    "sort_keys",
]
