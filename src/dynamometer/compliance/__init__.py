"""Licences, provenance and what may be shipped. A leaf: nobody imports it but the command line."""
