"""What a statistic is, and where it rests. Knows neither Spark nor Flight."""
