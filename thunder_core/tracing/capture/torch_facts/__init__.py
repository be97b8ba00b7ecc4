"""Facts about PyTorch's operations and state, which do not depend on a recording."""
