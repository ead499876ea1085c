"""What a statistic is: schemas, types, bounds, targets, freshness, predicates, sketches."""
