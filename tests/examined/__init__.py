"""`thunder debug` on model families, dtypes and recipes: it may find nothing in programs that are right."""
