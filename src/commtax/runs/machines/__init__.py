"""What a machine reports of its GPUs and links, and its audit."""
