"""The messages of the protocols. Written by sdk/generate; not for plugins."""
