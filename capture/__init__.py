"""Captures of statistics: connectors, engines, publishers. Knows no Flight server."""
