"""The model of a claim where nobody names one: a training log tells its own, and links and collectives are asked none."""

from dataclasses import replace

from commtax import catalog
from commtax.audit.reading import Read
from commtax.logs.crashes import Crash
from commtax.logs.training_log import TrainingLog
from commtax.logs.training_plan import told_by
from commtax.machines.matrices import Matrices
from commtax.machines.smi import Links, Monitor
from commtax.machines.smi_query import States
from commtax.results.collective_tests import CollectiveTests
from commtax.spec import Model
from commtax.statement import Refusal

UNASKED = (CollectiveTests, Crash, Links, Matrices, Monitor, States)
"""Records that are judged by their place alone."""
ANY = "any model"


def model_of(read: Read) -> Model:
    """The model that the first training log tells; any where no file asks for one."""
    told = (told_by(said).model for _, said in read.left if isinstance(said, TrainingLog))
    if model := next(filter(None, told), None):
        return model
    if all(isinstance(said, UNASKED) for _, said in read.left):
        return replace(catalog.model(next(iter(catalog.keys("models")))), key=ANY)
    raise Refusal("model: name what ran with --model; the files do not tell it", "model")
