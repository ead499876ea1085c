"""Delta Lake: transaction log, deletion vectors, Unity catalogs."""
