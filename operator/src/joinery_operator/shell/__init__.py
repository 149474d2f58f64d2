"""The operator as a process: what watches, asks, writes and is looked after. All that is decided is in `reconcile`.

kopf's watches -> store -> queue -> worker: observe -> reconcile (pure) -> status, actions, events
polls of drivers --^ ^---- audit: lists again, and says when a watch is dead
"""
