"""Pure functions, scalar or array alike, no I/O: what is sent, what is stored, how long it takes."""
