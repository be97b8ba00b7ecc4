"""The ranks of a command: the first rank decides, and the other ranks carry out its commands."""
