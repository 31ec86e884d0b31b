"""Laws are about values: no deadline, because machines are shared; a failure prints what reproduces it."""

from hypothesis import settings

settings.register_profile("commtax", deadline=None, print_blob=True)
settings.load_profile("commtax")
