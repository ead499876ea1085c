"""A store that several servers share: PostgreSQL has the truth, each server's DuckDB file is a cache that answers."""
