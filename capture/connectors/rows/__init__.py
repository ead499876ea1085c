"""The rows of data files: values by their paths, and which rows are deleted."""
