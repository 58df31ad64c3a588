"""Model interface and implementations."""
