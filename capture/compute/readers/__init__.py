"""Readers: column values of one file, by format."""
