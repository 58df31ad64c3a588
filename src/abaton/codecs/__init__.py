"""Updates to bytes and back: small, honest, safe to decode."""
