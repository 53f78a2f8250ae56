"""One question a file, small."""
