"""LOG. The clock, the append-only log, the manifest and the store that reads them back."""
