"""Generation: the calls of `generate`, and their coverage, speed and validation."""
