"""Rows and the snapshots they hold for: validation of puts, spans, current rows, and the merge."""
