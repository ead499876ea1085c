"""Apache Iceberg: catalogs, manifests, deletes, Puffin."""
