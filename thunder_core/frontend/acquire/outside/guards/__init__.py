"""Guards on what a program has read from outside, by the kind of their requirement."""
