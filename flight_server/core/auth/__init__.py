"""Callers and permissions."""
