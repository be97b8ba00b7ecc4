"""`thunder debug` on model families, dtypes and recipes: right programs must have no fault."""
