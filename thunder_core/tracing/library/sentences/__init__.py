"""Models of sentence-transformers: a transformer, and stages that make one embedding of its token embeddings."""
