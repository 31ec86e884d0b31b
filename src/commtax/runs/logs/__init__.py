"""What programs print and leave when they end: engines, NCCL, trainers, crashes, flight recorders; each with its audit."""
