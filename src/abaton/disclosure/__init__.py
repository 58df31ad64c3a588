"""Disclosure control of aggregates that leave a site."""
