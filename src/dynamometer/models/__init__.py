"""FITS. Figures in, laws with intervals out."""
