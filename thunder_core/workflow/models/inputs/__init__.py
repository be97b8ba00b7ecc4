"""Inputs of a model: random ones, texts, datasets, prompts."""
