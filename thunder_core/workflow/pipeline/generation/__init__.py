"""Generation: the calls that `generate` makes, their coverage, speed and findings."""
