"""The studies where they are called from: ``python -m commtax_lab.study.kernels`` is ``measure/study/kernels.py``."""

from commtax_lab.measure.study import __path__ as __path__
