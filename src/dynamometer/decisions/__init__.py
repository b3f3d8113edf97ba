"""SO WHAT. Figures, laws and prices in; decisions out."""
