"""One TOML a study: a ready experiment with its question and its verdict."""
