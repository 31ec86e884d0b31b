"""Results of benchmarks, one module a family of tools; ``readers.bench`` tells them apart."""
