"""The laboratory: the tensor-parallel study on any engine, and sweeps over kernels, built on the live runs of ``measure``."""

import tomllib
from pathlib import Path

from commtax.files import Document


def table(name: str) -> Document:
    """Facts of a study that lie beside its code."""
    return tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))
