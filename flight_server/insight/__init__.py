"""Insight from statistics: rules with their grammar, measures and results; learned rules, alarms, relationships."""
