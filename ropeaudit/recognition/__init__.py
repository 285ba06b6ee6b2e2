"""What explains wrong numbers, of rotated vectors, frequencies and tables: diagnoses and their words."""
