"""How each engine is started: a model, settings and a free port in, a Recipe out. One family a file."""
