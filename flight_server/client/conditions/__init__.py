"""Translation of conditions, given as SQL text or Arrow expressions, to filter trees."""
