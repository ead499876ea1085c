"""The model of statistics and their storage. Imports neither Spark nor Flight."""
