"""Traces of GPUs: the record that every profiler's file becomes, and its audit."""
