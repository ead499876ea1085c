"""Replication of the database: its log shipped to a place, restored, followed, and taken over. See README.md."""
