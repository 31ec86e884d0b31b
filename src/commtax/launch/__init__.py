"""Launch commands, read and written by the same tables: an engine's file of the catalogue has its flags, ``KEY_command.py`` here
what they mean together.

``read_command`` turns a command, a script or YAML into a ``Launch``, ``writing`` a question into the command that starts its plan.
"""
