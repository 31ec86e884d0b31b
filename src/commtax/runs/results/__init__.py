"""What benchmarks measured: of servers and of collectives; each with its audit."""
