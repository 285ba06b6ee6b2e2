"""Bugs that shipped are caught and named, and what is right beside each passes; docs/shipped-bugs.md says so.

`python tests/shipped/test_shipped.py` writes that page; `--run` prints what is said of every bug, with the
seconds of CPU, or of those whose ids follow.
"""
