"""What the commands print of benchmarks."""
