"""SaslHandshake (17): choose a SASL mechanism.

After version 0 the exchange runs in bare frames, after version 1 in SaslAuthenticate requests. Never flexible.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "SaslHandshakeRequest",
    api_key=17,
    versions="0-1",
    fields=[
        field("mechanism", "string", "0+"),
    ],
)

RESPONSE = message(
    "SaslHandshakeResponse",
    api_key=17,
    versions="0-1",
    fields=[
        field("error_code", "int16", "0+"),
        field("mechanisms", "[]string", "0+"),
    ],
)
