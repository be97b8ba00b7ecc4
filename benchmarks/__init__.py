"""Figures beside others, each measured in one run; see docs/performance.md."""
