"""Values that the backward recomputes instead of keeping them."""
