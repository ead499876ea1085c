"""Statistics kernels on NumPy and Arrow; independent of Spark."""
