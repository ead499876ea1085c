"""Writes: from a stream of batches to a commit."""
