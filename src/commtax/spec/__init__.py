"""The nouns: small frozen records that every verb shares.

====================  =====================================================================================
``Model``             layers of ``Block`` kinds: ``Attention``, ``DeltaNet`` or ``Mamba2``, and an ``Mlp`` or ``Experts``
``Cluster``           hosts of one ``Chip``, the ``Link`` inside them and the one between
``Plan``              how the model is laid over GPUs: the size of each ``Axis`` and the kinds of training
``Workload``          one engine step of serving, any mix; ``TrainStep`` one optimiser step
``Engine``            what a framework sends, waits for, batches, reserves and overlaps
``Fabric``            the ``Path`` that a library has for each collective; ``KernelConstants`` those of kernels
``Profile``           what was measured on one machine, laid over the catalogue
====================  =====================================================================================

Numbers are SI floats with the unit in the name. ``Plan`` and ``Workload`` may hold NumPy arrays in their numeric
fields; every function in ``cost`` then returns arrays of the same shape.
"""

from commtax.records import Condition, Number
from commtax.spec.constants import (
    KERNEL_PACES,
    LATENCIES,
    MEASURED,
    STEP_PARTS,
    Algorithm,
    ChipFacts,
    Deployment,
    ExchangePath,
    Fabric,
    KernelConstants,
    Network,
    NetworkCurve,
    Path,
    Profile,
    Protocol,
    RunLesson,
    Spread,
)
from commtax.spec.engine import ENGINE_PARTS, Engine, KernelHabits, Program, Sending, StateHabits, TrainingHabits
from commtax.spec.hardware import Chip, Citation, Cluster, Link
from commtax.spec.model import (
    RECURRENT,
    Attention,
    Block,
    Compressed,
    DeltaNet,
    Experts,
    Extra,
    Hyper,
    Indexer,
    Latent,
    Mamba2,
    Mixer,
    Mlp,
    Model,
    Quant,
    Tower,
    TowerTensor,
)
from commtax.spec.plan import (
    ARITHMETIC,
    AXES,
    CACHE_SPLIT,
    COUNTED,
    DTYPE_BYTES,
    KINDS,
    MODULES,
    NO_TECHNIQUES,
    OVERLAPPED,
    PARALLEL,
    SERVING_AXES,
    SIZES,
    TAXES,
    AxisName,
    Drafter,
    Plan,
    Technique,
    Techniques,
    TrainStep,
    Workload,
)
