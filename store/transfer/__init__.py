"""Export of a database as Parquet files, and import into an empty one."""
