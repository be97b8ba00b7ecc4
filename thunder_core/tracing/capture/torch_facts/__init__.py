"""Facts about PyTorch's operations and state, which do not depend on the recording."""
