"""What a question must keep to: one table of rules (``rules.toml``) and the functions that say where each is broken."""
