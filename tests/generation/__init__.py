"""Generation: whole models of the transformers library continue prompts, compared with eager PyTorch."""
