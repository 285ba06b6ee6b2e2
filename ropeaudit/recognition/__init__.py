"""What explains wrong numbers: of rotated vectors, of frequencies and of tables; diagnoses and their wording."""
