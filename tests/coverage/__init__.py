"""PyTorch's own databases of operators and modules, each entry run under `jit` and compared with eager PyTorch."""
