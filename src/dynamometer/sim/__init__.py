"""DRIVE in virtual time. The same requests and schedule in, the same rows out."""
