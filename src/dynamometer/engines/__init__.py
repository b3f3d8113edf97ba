"""WHO answers. One dialect a file, sans-I/O; `serve` starts real engines."""
