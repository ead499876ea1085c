"""Directories of tables: what lies at an address, and lakes of several formats."""
