"""The laboratory: the tensor-parallel study on any engine, and sweeps over kernels, built on the live runs of ``measure``."""
