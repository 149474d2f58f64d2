"""A job's state store as Kafka is told of it, for tests that open none."""

from joinery_runtime.connectors.source import StoreIdentity

STORE = StoreIdentity("a-store", "host here, port 5432, database state, schema joinery")
