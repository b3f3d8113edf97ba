"""WITNESS. Sensors beside the load; each gives `Sample` rows on the run's clock."""
