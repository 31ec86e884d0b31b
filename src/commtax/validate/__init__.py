"""Predicted against published figures."""
