"""Licences and provenance. A leaf: nobody imports it."""
