"""What the laboratory adds to commtax's report."""
