"""Engine-side writers: calls become numbered tables, in call order."""
