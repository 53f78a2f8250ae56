"""Where points live: the protocol and its stores."""
