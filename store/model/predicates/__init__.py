"""Predicates: a tree, and its equivalent forms in SQL and Arrow kernels."""
