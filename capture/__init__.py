"""Captures of statistics: connectors, engines, publishers. Independent of Flight."""
