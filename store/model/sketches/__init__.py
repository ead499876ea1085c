"""Theta, KLL and frequent-items sketches from NumPy arrays, in the serialized form of Apache DataSketches.

All three are deterministic functions of the values, so that capturing the same data twice gives the same bytes.
"""

from store.model.sketches.format import is_partial, is_partial_sql
from store.model.sketches.frequent_items import (
    FREQUENT_ITEMS_KEPT,
    FREQUENT_LG,
    FrequentItem,
    frequent,
    frequent_items,
    heaviest,
    merge_frequent,
    read_frequent,
)
from store.model.sketches.kll import KLL_K, Quantiles, histogram, kll, kll_step, merge_kll, quantiles, read_kll
from store.model.sketches.theta import (
    THETA_K,
    Estimate,
    Theta,
    ThetaBuilder,
    estimate,
    intersection,
    read_theta,
    theta,
    theta_bounds,
    union,
    write_theta,
)
