"""Printed results of benchmarks, and their exit statuses."""
