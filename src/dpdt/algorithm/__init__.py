"""Algorithm 1 and nothing else: no files, no printing, no configuration."""
