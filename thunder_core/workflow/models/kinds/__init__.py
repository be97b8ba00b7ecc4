"""The kinds of models: transformers, timm, sentence-transformers and diffusers, each a row of one table."""
