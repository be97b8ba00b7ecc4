"""Models of sentence-transformers: a transformer, and stages that compute one embedding from its token embeddings."""
