"""The ranks of parallel training: the first rank decides, and the other ranks carry out its commands."""
