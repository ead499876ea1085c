"""Plain Parquet: a file, a directory or a glob as one table."""
