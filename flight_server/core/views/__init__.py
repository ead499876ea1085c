"""What people ask of statistics, as values: a table with its columns, its history, the shape of a distribution."""
