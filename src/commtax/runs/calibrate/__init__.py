"""A user's own measurements into a profile that every command takes."""
