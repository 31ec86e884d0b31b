"""Files that real runs leave: read, audited, and made into a machine's own constants. No other wing imports this one."""
