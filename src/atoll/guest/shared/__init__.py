"""What both sides of a sandbox run: the codec, values, file operations. For CPython 3.8 too."""
