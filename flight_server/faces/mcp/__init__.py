"""Tools for agents, by the Model Context Protocol: what the statistics tell, and nothing else."""
