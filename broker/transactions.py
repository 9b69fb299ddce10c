"""Every API that a transactional client may use first refuses it with the same error.

Every client treats this error as final (librdkafka repeats FindCoordinator for ever after most others).
"""

from __future__ import annotations

from anabranch.protocol.errors import ErrorCode

NO_TRANSACTIONS = "transactions are not supported by this cluster"
NO_TRANSACTIONS_CODE = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
