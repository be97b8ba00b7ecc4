"""What commands print: each view turns plain data into something to look at."""
