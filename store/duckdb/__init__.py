"""The database file: its tables, its one writer, its readers, lock and backup."""
