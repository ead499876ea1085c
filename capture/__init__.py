"""How statistics come to be: connectors, engines, the control plane. Knows no Flight server."""
