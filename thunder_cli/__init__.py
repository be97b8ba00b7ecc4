"""The command line: `thunder` and its commands."""
