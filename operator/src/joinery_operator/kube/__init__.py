"""The operator as a process: watches, calls to the API server, metrics and probes. `reconcile` makes the decisions.

kopf's watches -> cache -> work queue -> worker: observe -> reconcile (pure) -> status, actions, events
polls of drivers --^ ^---- audit: lists again, and reports a dead watch
"""
