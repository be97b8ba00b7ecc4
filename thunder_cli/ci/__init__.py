"""Options and reports of checks for continuous integration."""
