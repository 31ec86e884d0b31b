"""Requests in time: an engine's scheduler, step by step, each step as long as it is priced."""
