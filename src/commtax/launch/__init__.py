"""Launch commands, read (``read_command``) and written (``writing``) by the same tables: an engine's file of the catalogue has its
flags, ``KEY_command.py`` here what they mean together."""
