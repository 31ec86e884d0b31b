"""The model of a claim where nobody names one: a training log tells its own, and links and collectives are asked none."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from commtax import catalog
from commtax.readers import formats
from commtax.readers.training_log import TrainingLog
from commtax.readers.training_plan import told_by
from commtax.spec import Model
from commtax.statement import Refusal

UNASKED = {"collectives", "links", "monitor"}
"""Kinds of files that are judged by their place alone."""
ANY = "any model"


def told_model(files: Sequence[Path]) -> Model:
    """The model that the first training log tells; any where no file asks for one."""
    kinds = [formats.kinds(path) for path in files]
    for path, found in zip(files, kinds, strict=True):
        if "training" in found:
            for said in formats.read(path):
                if isinstance(said, TrainingLog) and (model := told_by(said).model):
                    return model
    if all(set(found) <= UNASKED for found in kinds):
        return replace(catalog.model(next(iter(catalog.keys("models")))), key=ANY)
    raise Refusal("model: name what ran with --model; the files do not tell it", "model")
