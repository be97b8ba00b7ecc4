"""What the backward recomputes instead of keeping."""
