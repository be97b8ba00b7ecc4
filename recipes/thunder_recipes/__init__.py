"""Thunder's own recipes, one a file; each defines one subclass of Recipe."""
