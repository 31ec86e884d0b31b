"""Judgements: what is good or bad, worth it, too close to call, overloaded, or not to be trusted.

Each matter is judged in one function here, which takes figures and returns data (a code, a flag, a probability). Verbs, the
planner, audits and every surface ask it; none of them compares a figure with a threshold of its own.
"""
