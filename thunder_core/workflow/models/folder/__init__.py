"""Models as they lie on disk or on the Hub."""
