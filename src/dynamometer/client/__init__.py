"""DRIVE in real time. Requests and a schedule in, log rows out."""
