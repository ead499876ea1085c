"""Facts about columns in the metadata of several formats: analysed statistics, comments, bounds by known writers."""
