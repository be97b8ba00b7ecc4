"""The search for the best candidate on the command line: its commands, its progress and its tables."""
