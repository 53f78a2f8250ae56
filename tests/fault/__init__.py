"""Clients whose network, disk, memory and neighbours fail; what was logged is there, once."""
