"""The internal check of programs: it finds the executor, transform, guard or other part that causes a wrong result."""
