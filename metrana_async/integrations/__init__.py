"""Other libraries' training code, logged: one module each, imported on use."""
