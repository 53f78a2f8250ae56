"""The shared language of client, spool and server: pure bytes and columns, no I/O."""
