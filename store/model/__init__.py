"""The definition of a statistic: schemas, types, bounds, targets, freshness, predicates, sketches."""
