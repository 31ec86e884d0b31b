"""Live runs: a small tensor-parallel engine, its collectives, and what they take on this machine (extra ``live``)."""
