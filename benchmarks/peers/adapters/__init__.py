"""One module a peer, each with a class `Client` (`base.Adapter`): only its public calls."""
