"""What a Kafka client reports apart from its answers."""

from __future__ import annotations

from typing import ClassVar

from confluent_kafka import KafkaError


class LastError:
    """The newest error that a client reported by the way: why it gets no answer. Pass it as the client's `error_cb`."""

    permanent: ClassVar[frozenset[int]] = frozenset({KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._AUTHENTICATION})
    """Codes of errors that waiting does not heal."""

    def __init__(self) -> None:
        self._error: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        if self._error is None or error.code() != KafkaError._ALL_BROKERS_DOWN:  # which says less than the others
            self._error = error

    def forget(self) -> None:
        self._error = None

    @property
    def denied(self) -> KafkaError | None:
        """The newest error, if waiting does not heal it."""
        return self._error if self._error is not None and self._error.code() in self.permanent else None

    def __str__(self) -> str:
        return self._error.str() if self._error is not None else "no answer at all"
