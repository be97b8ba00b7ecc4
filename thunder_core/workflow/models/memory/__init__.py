"""How much memory there is, and its limits."""
