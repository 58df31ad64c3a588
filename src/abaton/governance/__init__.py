"""Consent, mapping table, audit, sealing, intake and withdrawal."""
