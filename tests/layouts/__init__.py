"""Memory layouts: recorded layouts equal the layouts at run time, and gradients match eager for all strides."""
