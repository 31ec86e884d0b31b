"""Verbs: a question in, an answer out. ``commtax.bill(...)``, ``commtax.fit(...)`` and their like are these functions."""
