"""What the operator's tests and its benchmark put around it: an API server in memory, a kubelet and drivers that only
pretend, and the operator itself as a process that may be killed at any call."""
