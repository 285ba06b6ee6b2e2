"""Diagnoses of wrong rotated vectors, frequencies and tables, and their wording."""
