"""The zoo: every model type of transformers, from a small config, compared with eager PyTorch."""
