"""Find models on disk and on the Hub."""
