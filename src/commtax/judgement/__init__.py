"""Judgements: what is good or bad, worth it, too close to call, overloaded, or not to be trusted. Each matter is judged in one
function here, which takes figures and returns data (a code, a flag, a probability); nothing else compares with thresholds."""
