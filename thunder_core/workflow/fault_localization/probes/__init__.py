"""Changed arguments and attributes for testing guards."""
