"""Changed arguments and attributes, by which guards are tried."""
