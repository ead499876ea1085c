"""Statistics kernels on NumPy and Arrow; nothing here knows Spark."""
