"""Benchmarks that compare contenders in one run; see docs/performance.md."""
