"""A plan, and the session that carries it out."""
