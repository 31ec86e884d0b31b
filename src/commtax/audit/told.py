"""The model of a claim where nobody names one: a training log tells its own, and links and collectives are asked none."""

from dataclasses import replace

from commtax import catalog
from commtax.audit.formats import BY_RECORD
from commtax.audit.reading import Read
from commtax.logs.training_log import TrainingLog
from commtax.logs.training_plan import told_by
from commtax.spec import Model
from commtax.statement import Refusal

ANY = "any model"


def model_of(read: Read) -> Model:
    """The model that the first training log tells; any where no file asks for one."""
    told = (told_by(said).model for _, said in read.left if isinstance(said, TrainingLog))
    if model := next(filter(None, told), None):
        return model
    if all(BY_RECORD[type(said)].by_place for _, said in read.left):
        return replace(catalog.model(next(iter(catalog.keys("models")))), key=ANY)
    raise Refusal("model: name what ran with --model; the files do not tell it", "model")
