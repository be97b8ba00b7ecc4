"""The check of the code around a computation: tracing, reads from outside, and the epilogue."""
