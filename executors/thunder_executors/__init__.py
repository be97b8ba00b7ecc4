"""Thunder's own executors, one a file; each defines EXECUTOR."""
