"""The internal check of programs: it finds the executor, transform, guard or other part that makes a result wrong."""
