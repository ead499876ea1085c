"""What looks at lakes cost, and lakes that say themselves what changed."""
