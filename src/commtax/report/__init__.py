"""Results as people read them (tables) and as programs read them (documents)."""
