"""The engine that reads data: in process when small, else on Spark."""
