"""Predicates: one meaning as a tree, as SQL and as Arrow kernels."""
