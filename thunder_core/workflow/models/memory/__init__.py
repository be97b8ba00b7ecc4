"""Free memory, its limits, and the memory that is given back."""
