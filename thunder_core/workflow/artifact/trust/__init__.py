"""Which modules and signatures an artifact may rely on."""
