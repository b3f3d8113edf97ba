"""FACTS. Model configurations, devices and links in; bytes, FLOPs, seconds and watts out.

Pure arithmetic, no I/O but reading the named file.
"""
