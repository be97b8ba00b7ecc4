"""Read and load folders of sentence-transformers."""
