"""Apache Paimon: snapshots, manifests, statistics files."""
