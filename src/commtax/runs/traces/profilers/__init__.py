"""Files of profilers, read into a ``Trace``."""
