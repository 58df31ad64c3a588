"""Record sources of a site."""
