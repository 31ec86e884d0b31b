"""Tables of published measurements: what each row says of itself, what it measured, and the question that it answers.

One file a kind of table; ``tables`` finds the files, those that ship here and those of a folder in the larger tables' columns.
"""
