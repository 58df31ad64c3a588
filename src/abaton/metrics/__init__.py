"""Performance metrics, computed from counts that add up over sites."""
