"""Canonical text of min and max (store/SEMANTICS.md §4): of typed values, of other texts, and its order.

All work on Arrow arrays, with Arrow kernels and NumPy; `canonical` reads a single text, also the rare ones of an array,
once per distinct value. A value that the logical type cannot represent (an unsigned integer above int64, a date after
year 9999) has no bound: it becomes null, which means unknown, and `canonical` raises ValueError.
"""

from store.model.bounds.columns import canonicalize_array, enclosing, encode_array, in_order, is_range, sort_keys
from store.model.bounds.java_floats import java_double, java_float
from store.model.bounds.scalar import REFUSE, BadBound, ZonePolicy, canonical
