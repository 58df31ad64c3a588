"""Export, residual checks and profiles of records."""
