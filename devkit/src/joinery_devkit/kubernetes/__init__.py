"""A Kubernetes for the tests: an API server tier that is up in seconds, and a whole node with pods."""
