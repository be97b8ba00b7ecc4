"""Thunder's own executors; each file defines EXECUTOR."""
