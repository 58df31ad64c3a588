"""Maintenance programs: the lock with its hashes, and the bill of materials."""
