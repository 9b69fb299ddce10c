"""``KafkaError`` and ``KafkaException`` in the form that confluent-kafka gives them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from anabranch.client import errors
from anabranch.client.errors import ErrorCode
from anabranch.zk_schemas.config_def import ConfigError

_LOCAL = """
_BAD_MSG _BAD_COMPRESSION _DESTROY _FAIL _TRANSPORT _CRIT_SYS_RESOURCE _RESOLVE _MSG_TIMED_OUT _PARTITION_EOF
_UNKNOWN_PARTITION _FS _UNKNOWN_TOPIC _ALL_BROKERS_DOWN _INVALID_ARG _TIMED_OUT _QUEUE_FULL _ISR_INSUFF _NODE_UPDATE
_SSL _WAIT_COORD _UNKNOWN_GROUP _IN_PROGRESS _PREV_IN_PROGRESS _EXISTING_SUBSCRIPTION _ASSIGN_PARTITIONS
_REVOKE_PARTITIONS _CONFLICT _STATE _UNKNOWN_PROTOCOL _NOT_IMPLEMENTED _AUTHENTICATION _NO_OFFSET _OUTDATED
_TIMED_OUT_QUEUE _UNSUPPORTED_FEATURE _WAIT_CACHE _INTR _KEY_SERIALIZATION _VALUE_SERIALIZATION _KEY_DESERIALIZATION
_VALUE_DESERIALIZATION _PARTIAL _READ_ONLY _NOENT _UNDERFLOW _INVALID_TYPE _RETRY _PURGE_QUEUE _PURGE_INFLIGHT _FATAL
_INCONSISTENT _GAPLESS_GUARANTEE _MAX_POLL_EXCEEDED _UNKNOWN_BROKER _NOT_CONFIGURED _FENCED _APPLICATION
_ASSIGNMENT_LOST _NOOP _AUTO_OFFSET_RESET _LOG_TRUNCATION _INVALID_DIFFERENT_RECORD _DESTROY_BROKER
"""
"""The errors of librdkafka itself, from -199 upwards. Only few of them occur here."""
_OTHER_NAMES = {
    "UNKNOWN": -1,
    "NO_ERROR": 0,
    "INVALID_MSG": 2,
    "UNKNOWN_TOPIC_OR_PART": 3,
    "INVALID_MSG_SIZE": 4,
    "NOT_LEADER_FOR_PARTITION": 6,
    "MSG_SIZE_TOO_LARGE": 10,
    "STALE_CTRL_EPOCH": 11,
    "TOPIC_EXCEPTION": 17,
}
"""The names of librdkafka that differ from Kafka's."""
CODES = {name: code for code, name in enumerate(_LOCAL.split(), -199)}
CODES |= {code.name: int(code) for code in ErrorCode} | _OTHER_NAMES
_NAMES = {code: name for name, code in CODES.items()}
_Text = str
"""``KafkaError`` has a method of the name ``str``."""


class _Codes(type):
    def __getattr__(cls, name: str) -> int:
        if name not in CODES:
            raise AttributeError(f"KafkaError has no code {name}")
        return CODES[name]


class KafkaError(metaclass=_Codes):
    """An error as a value. The codes are attributes of the class: ``KafkaError._MSG_TIMED_OUT``.

    It equals its code. ``KafkaError._PARTITION_EOF`` exists and never occurs.
    """

    def __init__(self, error: int, reason: _Text | None = None, fatal: bool = False, retriable: bool = False) -> None:
        self._code = error
        self._reason = self.name() if reason is None else reason
        self._fatal = fatal
        self._retriable = retriable

    def code(self) -> int:
        return self._code

    def name(self) -> _Text:
        return _NAMES.get(self._code, f"ERR_{self._code}")

    def str(self) -> _Text:
        return self._reason

    def fatal(self) -> bool:
        """Whether the client cannot be used any more."""
        return self._fatal

    def retriable(self) -> bool:
        return self._retriable

    def txn_requires_abort(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return self._code == (other._code if isinstance(other, KafkaError) else other)

    def __hash__(self) -> int:
        return hash(self._code)

    def __repr__(self) -> _Text:
        return f'KafkaError{{code={self.name()},val={self._code},str="{self._reason}"}}'


class KafkaException(Exception):
    """Raised with a ``KafkaError`` as ``args[0]``. The error of ``anabranch`` is its cause (``__cause__``)."""


_LOCAL_CODES: dict[type[Exception], str] = {
    errors.ClientFailedError: "_FATAL",
    errors.IllegalStateError: "_STATE",
    errors.KafkaTimeoutError: "_TIMED_OUT",
    errors.LogTruncationError: "_LOG_TRUNCATION",
    errors.NoOffsetForPartitionError: "_AUTO_OFFSET_RESET",
    ConfigError: "_INVALID_ARG",
}
"""The first class that fits counts."""


def error_of(error: Exception) -> KafkaError:
    """The error of ``anabranch`` as a value."""
    for kind, name in _LOCAL_CODES.items():
        if isinstance(error, kind):
            code = CODES[name]
            break
    else:
        code = int(error.code) if isinstance(error, errors.KafkaError) else CODES["_FAIL"]
    return KafkaError(
        code,
        str(error),
        fatal=isinstance(error, errors.ClientFailedError),
        retriable=isinstance(error, errors.RetriableError),
    )


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise ``KafkaException`` for the errors of ``anabranch``; the use of a closed client stays a RuntimeError."""
    try:
        yield
    except (errors.KafkaError, errors.IllegalStateError, ConfigError) as error:
        if isinstance(error, errors.ClientClosedError) and not isinstance(error, errors.ClientFailedError):
            raise
        raise KafkaException(error_of(error)) from error
