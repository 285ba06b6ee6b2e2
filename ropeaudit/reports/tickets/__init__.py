"""Tickets: what was measured, in the form that a tracker asks for."""
