"""Rules for every aggregate that leaves a site."""
