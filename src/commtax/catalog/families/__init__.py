"""How each family's ``config.json`` is read: one short function for an architecture, and its towers in ``vision``."""
