"""Which row holds when: validation of puts, spans, current rows, and the merge."""
