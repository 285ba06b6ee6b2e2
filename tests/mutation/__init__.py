"""What `tests/mutate.py` is made of: mutants, the tests that run their lines, and what became of them."""
