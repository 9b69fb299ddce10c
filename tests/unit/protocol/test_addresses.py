"""Addresses as ``host:port``."""

from __future__ import annotations

import re

import pytest

from anabranch.protocol.addresses import host_of, join_address, split_address, split_server


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:9092", ("localhost", 9092)),
        (" broker-1:0 ", ("broker-1", 0)),
        ("[::1]:9092", ("::1", 9092)),
        ("[fe80::1%eth0]:65535", ("fe80::1%eth0", 65_535)),
        (":9092", ("", 9092)),
    ],
)
def test_an_address_has_a_host_and_a_port(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address
    assert join_address(*address) == text.strip()


@pytest.mark.parametrize(
    "text",
    ["", "localhost", "9092", "localhost:", "localhost:http", "a:65536", "a:-1", "a:²", "a:1 2", "http://a:1", "a/b:1"],
)
def test_text_that_is_no_address_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not host:port") as caught:
        split_address(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("localhost", "localhost"),
        ("localhost:8480", "localhost"),
        ("localhost:", "localhost"),
        ("10.0.0.1:9092", "10.0.0.1"),
        ("[::1]", "::1"),
        ("[fe80::1%eth0]:9092", "fe80::1%eth0"),
        ("A.example", "A.example"),
    ],
)
def test_a_host_is_read_with_and_without_a_port(text: str, host: str) -> None:
    assert host_of(text) == host


@pytest.mark.parametrize(
    "text", ["", ":80", "[]", "[]:80", "::1", "[::1", "::1]:80", "[::1]x", "a:80:90", "a:http", "a:²", "a:1\n"]
)
def test_text_that_is_no_address_has_no_host(text: str) -> None:
    assert host_of(text) == ""


@pytest.mark.parametrize("text", ["a:9092", "PLAINTEXT://a:9092", "plaintext://a:9092", " PLAINTEXT://a:9092 "])
def test_a_server_may_name_the_protocol_plaintext(text: str) -> None:
    assert split_server(text) == ("a", 9092)
    assert split_server("PLAINTEXT://[::1]:9092") == ("::1", 9092)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SSL://a:9092", "names another protocol than PLAINTEXT"),
        ("SASL_PLAINTEXT://a:9092", "names another protocol than PLAINTEXT"),
        ("http://a:9092", "names another protocol than PLAINTEXT"),
        ("://a:9092", "names another protocol than PLAINTEXT"),
        ("PLAINTEXT://a", "is not host:port"),
        ("PLAINTEXT://:9092", "is not host:port"),
        ("PLAINTEXT://PLAINTEXT://a:1", "names another protocol than PLAINTEXT"),
        ("a:0", "is not host:port"),
        ("a:9092/", "is not host:port"),
    ],
)
def test_another_server_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)) as caught:
        split_server(text)
    assert repr(text) in str(caught.value)
