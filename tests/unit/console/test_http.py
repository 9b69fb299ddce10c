"""The requests that the console accepts, and its responses when the cluster does not answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlencode

import pytest
import trio
from trio.testing import MockClock

from anabranch import KafkaError
from anabranch.console import app as console_app
from anabranch.console import changes, pages
from anabranch.console.app import Console, ConsoleConfig
from anabranch.console.pages import Rendered
from anabranch.console.query import BadQueryError
from anabranch.console.security import MAX_FORM_BYTES
from anabranch.console.watch import NotThereError, UnreachableError, Watch
from anabranch.protocol.errors import ErrorCode
from tests.unit.cli.fake_admin import FakeAdmin

pytestmark = pytest.mark.trio
HOSTILE = "<script>alert(1)</script>\"'&"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str


async def ask(
    app: Any,
    path: str,
    method: str = "GET",
    headers: Mapping[str, str] = {},
    body: bytes = b"",
    *,
    is_whole: bool = True,
    rest: dict[str, Any] | None = None,
) -> Answer:
    """Send one request over ASGI. ``rest`` is the message after the body; by default there is none."""
    target, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(target),
        "raw_path": target.encode(),
        "query_string": query.encode(),
        "headers": [(k.lower().encode(), v.encode()) for k, v in {"host": "localhost:8480", **headers}.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8480),
    }
    found: list[dict[str, Any]] = []
    sent = False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent and rest is None:
            await trio.sleep_forever()
        if sent and rest is not None:
            return rest
        sent = True
        return {"type": "http.request", "body": body, "more_body": not is_whole}

    async def send(message: Any) -> None:
        found.append(message)

    await app(scope, receive, send)
    start = next(m for m in found if m["type"] == "http.response.start")
    text = b"".join(m.get("body", b"") for m in found if m["type"] == "http.response.body").decode()
    return Answer(start["status"], {k.decode(): v.decode() for k, v in start["headers"]}, text)


class Calls:
    """A change that only counts its calls."""

    def __init__(self, refused: str | None = None) -> None:
        self.made: list[dict[str, str]] = []
        self._refused = refused

    async def plan(self, _watch: Any, query: Mapping[str, str], _bootstrap: str) -> changes.Plan:
        form = {name: value for name, value in query.items() if name != "token"}
        return changes.Plan(f"Do {HOSTILE}", "/topics/t", f"anabranch {HOSTILE}", form, self._refused, {})

    async def make(self, _watch: Any, plan: changes.Plan, _bootstrap: str) -> str:
        self.made.append(plan.form)
        return f"done {HOSTILE}"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    found = Calls()
    monkeypatch.setattr(changes, "CHANGES", {"it": changes.Change(found.plan, found.make)})
    return found


def served(monkeypatch: pytest.MonkeyPatch, error: Exception | None = None, **config: Any) -> Any:
    async def page(_watch: Any, path: Mapping[str, str], _query: Any) -> Rendered:
        if error is not None:
            raise error
        return Rendered("error", {"status": 200, "text": path.get("topic", HOSTILE)})

    monkeypatch.setattr(pages, "PAGES", dict.fromkeys(pages.PAGES, page))
    watch: Any = None
    return Console(watch, ConsoleConfig("localhost:9092", **config)).app()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8480", 200),
        ("127.0.0.1", 200),
        ("[::1]:8480", 200),
        ("LOCALHOST", 200),
        ("console.example:80", 200),
        ("evil.example", 421),
        ("localhost.evil.example:8480", 421),
        ("[::1].evil.example", 421),
        ("localhost:80.evil.example", 421),
        ("", 421),
    ],
)
async def test_only_requests_for_its_own_host_names_are_answered(
    monkeypatch: pytest.MonkeyPatch, host: str, status: int
) -> None:
    answer = await ask(served(monkeypatch, hosts=["console.example"]), "/", headers={"host": host})
    assert answer.status == status


@pytest.mark.parametrize("path", ["/", "/topics/t", "/nothing", "/static/console.js"])
async def test_every_response_forbids_foreign_content(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    headers = (await ask(served(monkeypatch), path)).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("error", "status", "expected"),
    [
        (BadQueryError("page is 'x': a number is needed"), 400, "page is &#39;x&#39;"),
        (NotThereError("topic t does not exist"), 404, "topic t does not exist"),
        (UnreachableError("no broker answers"), 503, "The cluster does not answer. no broker answers"),
        (KafkaError(ErrorCode.INVALID_REQUEST, "no"), 502, "INVALID_REQUEST"),
    ],
)
async def test_an_error_is_a_page_with_its_status(
    monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, expected: str
) -> None:
    answer = await ask(served(monkeypatch, error), "/topics/t")
    assert (answer.status, expected in answer.text) == (status, True)
    assert "<nav" in answer.text


async def test_html_in_names_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = await ask(served(monkeypatch), "/")
    assert HOSTILE not in answer.text and "&lt;script&gt;" in answer.text


async def test_a_change_needs_the_token_of_this_process(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> None:
    app = served(monkeypatch, allow_changes=True)
    page = await ask(app, "/change/it?count=8")
    assert calls.made == [] and HOSTILE not in page.text
    token = re.search(r'name="token" value="([^"]+)"', page.text)
    assert token is not None
    for wrong in ("", "x" * 43):
        answer = await ask(app, "/change/it", "POST", body=urlencode({"count": 8, "token": wrong}).encode())
        assert (answer.status, calls.made) == (403, [])
    answer = await ask(app, "/change/it", "POST", body=urlencode({"count": 8, "token": token[1]}).encode())
    assert (answer.status, calls.made) == (303, [{"count": "8"}])
    after = await ask(app, answer.headers["location"])
    assert "done &lt;script&gt;" in after.text and HOSTILE not in after.text


async def test_a_form_shows_the_plan_without_a_change(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> None:
    app = served(monkeypatch, allow_changes=True)
    page = await ask(app, "/change/it/plan", "POST", body=urlencode({"value": "x" * 100_000}).encode())
    assert (page.status, "x" * 100_000 in page.text, calls.made) == (200, True, [])
    too_large = await ask(app, "/change/it/plan", "POST", body=b"x=" + b"y" * MAX_FORM_BYTES)
    assert too_large.status == 400


@pytest.mark.parametrize("origin", ["https://evil.example", "http://localhost:1", "null", "http://[", "localhost:8480"])
async def test_a_form_of_another_site_is_refused(monkeypatch: pytest.MonkeyPatch, calls: Calls, origin: str) -> None:
    app = served(monkeypatch, allow_changes=True)
    token = re.search(r'name="token" value="([^"]+)"', (await ask(app, "/change/it")).text)
    assert token is not None
    body = urlencode({"token": token[1]}).encode()
    answer = await ask(app, "/change/it", "POST", {"origin": origin}, body)
    assert (answer.status, calls.made) == (403, [])
    assert (await ask(app, "/change/it", "POST", {"origin": "http://localhost:8480"}, body)).status == 303


async def test_a_read_only_console_changes_nothing(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> None:
    app = served(monkeypatch)
    page = await ask(app, "/change/it")
    assert "--allow-changes" in page.text and "<button class=" not in page.text
    assert ((await ask(app, "/change/it", "POST", body=b"token=x")).status, calls.made) == (403, [])


async def test_a_refused_change_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Calls("it drains")
    monkeypatch.setattr(changes, "CHANGES", {"it": changes.Change(refused.plan, refused.make)})
    console = served(monkeypatch, allow_changes=True)
    page = await ask(console, "/change/it")
    assert "it drains" in page.text and 'name="token"' not in page.text
    monkeypatch.setattr(console_app, "is_token", lambda *_: True)
    answer = await ask(console, "/change/it", "POST", body=b"token=x")
    assert (answer.status, refused.made) == (409, [])


@pytest.mark.parametrize(
    ("refusal", "shown"),
    [
        (KafkaError(ErrorCode.INVALID_PARTITIONS, "Topic currently has 4 partitions"), "4 → 2 partitions."),
        (None, "4 → 2 partitions; about 50.0 % of the keys move."),
    ],
)
async def test_a_resize_that_the_cluster_does_not_know_shows_no_share_of_keys(
    refusal: KafkaError | None, shown: str
) -> None:
    admin: Any = FakeAdmin(version=-1, ordered=False, refusal=refusal)
    reader: Any = None
    page = await ask(
        Console(Watch(admin, reader), ConsoleConfig("localhost:9092")).app(), "/change/resize?topic=t&count=2"
    )
    assert page.status == 200 and f"<p>{shown}</p>" in page.text
    assert ("This cannot be done now: INVALID_PARTITIONS" in page.text) is (refusal is not None)


@pytest.mark.parametrize("path", ["//[", "//[?q=x", "/nothing", "[", "http://["])
async def test_live_updates_of_an_unknown_path_are_refused(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    assert (await ask(served(monkeypatch), "/live?" + urlencode({"path": path}))).status == 404


@pytest.mark.parametrize("path", ["/change/it", "/change/it/plan"])
@pytest.mark.parametrize(("rest", "status"), [(None, 408), ({"type": "http.disconnect"}, 400)])
async def test_a_form_whose_body_does_not_arrive_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    calls: Calls,
    autojump_clock: MockClock,
    path: str,
    rest: dict[str, Any] | None,
    status: int,
) -> None:
    """The browser sends the first bytes. Then it sends nothing, or closes the connection."""
    answer = await ask(served(monkeypatch, allow_changes=True), path, "POST", body=b"token", rest=rest, is_whole=False)
    assert (answer.status, calls.made) == (status, [])


@pytest.mark.parametrize("headers", [{}, {"content-length": str(MAX_FORM_BYTES + 1)}])
async def test_a_form_that_is_too_large_is_refused(
    monkeypatch: pytest.MonkeyPatch, calls: Calls, headers: dict[str, str]
) -> None:
    app = served(monkeypatch, allow_changes=True)
    body = b"x=" + b"y" * MAX_FORM_BYTES
    answer = await ask(app, "/change/it", "POST", headers, body)
    assert answer.status in (400, 413) and calls.made == []


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ({}, "live"),
        ({"error": None, "every_s": 0.8}, "live"),
        ({"error": None, "every_s": 12.3}, "live, every 12 s"),
        ({"error": "no broker answers", "every_s": 12.3}, "not up to date"),
    ],
)
async def test_a_live_page_shows_whether_it_is_up_to_date(values: Mapping[str, Any], state: str) -> None:
    assert console_app.state_of(values) == state
