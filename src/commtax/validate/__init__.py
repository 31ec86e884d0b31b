"""Predictions against published measurements: what a row of a table asks, and how far the answer is off."""
