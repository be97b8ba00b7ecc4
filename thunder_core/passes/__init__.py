"""What changes a trace: transforms, derivatives, and the recipes that choose them."""
