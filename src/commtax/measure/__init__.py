"""Measuring on real devices: a leaf that needs torch, which nothing below imports."""
