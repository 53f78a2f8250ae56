"""The disk spool: what could not be delivered yet, kept on this machine until it is."""
