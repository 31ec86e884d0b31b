"""Things that happen in time, simulated into timelines."""
