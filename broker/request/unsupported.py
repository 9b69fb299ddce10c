"""The errors for requests about features that a broker does not have.

Every client treats the error of transactions as final. After most other errors librdkafka repeats FindCoordinator for
ever. Tools take the error of access control lists for "there are no lists", and a missing API for a fault.
"""

from __future__ import annotations

from anabranch.protocol.errors import ErrorCode

NO_TRANSACTIONS = "transactions are not supported by this cluster"
NO_TRANSACTIONS_CODE = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
NO_AUTHORIZER = "the cluster has no authorizer"
NO_AUTHORIZER_CODE = ErrorCode.SECURITY_DISABLED
