"""Programs for whoever maintains Abaton: the lock with its hashes, and the bill of materials."""
