"""A plan, and the session that carries out the plan."""
