"""Inputs of a model: random inputs, texts, datasets and prompts."""
