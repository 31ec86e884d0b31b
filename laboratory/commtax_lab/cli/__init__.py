"""What the laboratory adds to commtax's cli."""
