"""The statements that Flight SQL takes: read, checked, planned, and run over flights."""
