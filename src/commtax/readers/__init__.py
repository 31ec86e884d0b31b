"""Files of other tools, read into measurements."""
