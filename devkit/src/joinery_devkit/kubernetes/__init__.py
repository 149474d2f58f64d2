"""A Kubernetes of the tests' own: an API server tier that is up in seconds, and a whole node with pods."""
