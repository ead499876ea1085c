"""The engine that reads data: small tables in this process, large ones on Spark."""
