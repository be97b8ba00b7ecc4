"""Facts about PyTorch's operations and state that do not depend on a recording."""
