"""Predictions against published measurements: how far each answer is off, and whether the stated bounds hold.

``check(folder)`` prices every row of a folder of tables (or of the table that ships here) and judges the stated bounds.
"""

from commtax.readers.published.tables import KINDS as KINDS
from commtax.validate.bounds import Bound as Bound
from commtax.validate.records import Records as Records
from commtax.validate.running import Report as Report
from commtax.validate.running import check as check
