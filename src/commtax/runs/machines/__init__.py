"""What a machine says of its GPUs and links; each with its audit."""
