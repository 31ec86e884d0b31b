"""Predictions against published measurements: what a row of a table asks, and how far the answer is off.

``check(folder)`` prices every row of a folder of tables (or of the table that ships here) and judges the stated bounds.
"""

from commtax.validate.records import FIELDS as FIELDS
from commtax.validate.records import Records as Records
