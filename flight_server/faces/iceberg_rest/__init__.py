"""A read-only Iceberg REST catalog over the tables of the server, whose scans are planned by stored statistics."""
