"""Reads: from a validated request to a stream of batches."""
