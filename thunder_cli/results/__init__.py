"""Printed results of benchmarks, and the statuses that they end with."""
