"""What the operator's tests and its benchmark run it against: a simulation of the cluster for `reconcile` alone, an API
server in memory for its calls, a fake node on a real API server, and the operator as a process that may be killed at
any call."""
