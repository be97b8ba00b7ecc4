"""Generation: whole models of the transformers library that continue prompts, beside eager PyTorch."""
