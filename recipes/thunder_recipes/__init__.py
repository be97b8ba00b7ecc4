"""Thunder's own recipes; each file defines one subclass of Recipe."""
