"""The parts of a page."""
