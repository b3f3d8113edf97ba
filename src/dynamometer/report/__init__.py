"""SAY. Figures and decisions in; tables, pictures and pages out."""
