"""The operator as a process: watches, calls of the API server, metrics and probes. Decisions are made in `reconcile`.

kopf's watches -> cache -> work queue -> worker: observe -> reconcile (pure) -> status, actions, events
polls of drivers --^ ^---- audit: lists again, and says when a watch is dead
"""
