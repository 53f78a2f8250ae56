"""What logging costs with this client and with its peers, each in an environment of its own."""
