"""Conditions on rows, from SQL text and from Arrow expressions."""
