"""The console on a real cluster, in Chromium: every page, wide and narrow, while a topic is resized under load."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from html import unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

import pytest

pytest.importorskip("starlette", reason="the console needs the extra [console]")
pytest.importorskip("selenium", reason="drives Chromium")

from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By

from anabranch import NewTopic
from anabranch.console.app import STREAMS
from anabranch.console.security import REQUEST_S
from anabranch.sync import Admin, Consumer, Producer
from anabranch.testing.cluster import Cluster
from anabranch.testing.processes import ProcessCluster, wait_for
from anabranch.view.record_text import parse_json
from tests.support.resize.keyed_load import KeyedLoad
from tests.support.seen.chromium import LOW_CONTRAST, OVERFLOWING, Browser, chromium
from tests.support.seen.served_console import Served

pytestmark = pytest.mark.integration

DEADLINE_S = 60.0
LOOKS = (("desktop", "light", 6), ("phone", "dark", 9), ("desktop", "dark", 5), ("phone", "light", 7))
"""The size and the colours of the page, and the partition count to which the topic is resized meanwhile."""
LONGEST = 249
"""The greatest length of a topic's name."""
HOSTILE = "<script>document.title = 'run'</script><img src=http://example.com/x>"
WIDE_TABLES = """return [...document.querySelectorAll(".scroll")].filter(
  e => e.querySelector("table") && e.scrollWidth > e.clientWidth).map(e => e.ariaLabel)"""
TEXT = "h1, h2, p, dt, dd, a, td, th, li, label, figcaption, th button, .small, .level, .todo"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    """A schema registry whose schema 7 is an Avro record with a name."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            schema = {"type": "record", "name": "User", "fields": [{"name": "name", "type": "string"}]}
            found = self.path == "/schemas/ids/7"
            body = json.dumps({"schema": json.dumps(schema)} if found else {"message": "Schema not found"}).encode()
            self.send_response(200 if found else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def console(cluster: Cluster, registry: str) -> Iterator[Served]:
    with Served(cluster.bootstrap_servers, "--allow-changes", "--schema-registry", registry) as served:
        yield served


@pytest.fixture
def topic(cluster: Cluster, console: Served, fresh_name: Callable[[str], str]) -> str:
    """Create a topic, and wait until the console shows it: brokers get a new topic one after the other."""
    name = create(cluster, f"{fresh_name('console')}-{'x' * LONGEST}"[:LONGEST])
    wait_for(lambda: console.get(f"/topics/{name}")[0] == 200, DEADLINE_S, "the console knows the topic")
    return name


def create(cluster: Cluster, name: str, **configs: str) -> str:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, 4, 3, configs=configs)])
    return name


def test_every_page_fits_while_a_topic_is_resized_under_load(
    cluster: Cluster, console: Served, browser: Browser, topic: str, fresh_name: Callable[[str], str]
) -> None:
    hostile = create(cluster, fresh_name("hostile"), **{"message.timestamp.after.max.ms": str(2**63 - 1)})
    group = f"readers of {topic} / {HOSTILE}"[:200]
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send(
            hostile, key=HOSTILE.encode(), value=HOSTILE.encode(), headers=[(HOSTILE, b"x")], timestamp_ms=2**62
        ).result()
    at, of_group = urllib.parse.quote(topic), urllib.parse.quote(group)
    pages = [
        "/",
        "/topics",
        f"/topics/{at}",
        f"/topics/{hostile}/messages?from=beginning&key={urllib.parse.quote(HOSTILE)}",
        "/groups",
        f"/groups/{of_group}",
        f"/configs/topic/{at}",
        "/configs/broker/1",
        f"/change/resize?topic={at}&count=8",
        f"/change/reset?group={of_group}&topic={at}&to=earliest",
        f"/change/produce?topic={at}&key=k&value={urllib.parse.quote(HOSTILE)}",
    ]
    with (
        KeyedLoad(cluster.bootstrap_servers, topic, group) as load,
        Admin(bootstrap_servers=cluster.bootstrap_servers) as admin,
    ):
        for size, scheme, count in LOOKS:
            load.wait_for_more("the load")
            admin.create_partitions({topic: count})
            browser.size(size)
            browser.scheme(scheme)
            for page in pages:
                browser.open(console.url + page)
                assert browser.run("return document.querySelector('h1') !== null"), page
                assert browser.run("return document.documentElement.scrollWidth <= innerWidth"), f"{page} on a {size}"
                assert browser.run(OVERFLOWING) == [], f"{page} on a {size}"
                assert size != "phone" or browser.run(WIDE_TABLES) == [], page
                assert browser.run(LOW_CONTRAST, TEXT) == [], f"{page} in {scheme}"
                asked = browser.requests()
                assert asked and all(url.startswith(console.url) for url in asked), page
                assert browser.driver.title.endswith("· Anabranch"), "no script of a record has run"
                assert browser.driver.get_log("browser") == [], page
    assert load.failures == []


def test_an_open_page_follows_changes_and_keeps_the_focus(
    cluster: Cluster, console: Served, browser: Browser, topic: str
) -> None:
    browser.size("desktop")
    browser.open(f"{console.url}/topics/{topic}")
    drawn = "return document.querySelectorAll('path.edge.split').length === arguments[0]"
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_partitions({topic: 6})
        wait_for(lambda: browser.run(drawn, 2), DEADLINE_S, "two splits are drawn")
        browser.run("document.getElementById('as-text').focus()")
        admin.create_partitions({topic: 7})
        wait_for(lambda: browser.run(drawn, 3), DEADLINE_S, "a third split is drawn")
    assert browser.run("return document.activeElement.id") == "as-text"
    as_text = browser.run("return document.getElementById('splits-as-text').textContent")
    assert "partition 4, from its leader epoch" in as_text


def test_a_resize_is_shown_first_and_made_when_confirmed(
    cluster: Cluster, console: Served, browser: Browser, topic: str
) -> None:
    browser.size("phone")
    browser.open(f"{console.url}/topics/{topic}")
    browser.run("document.getElementById('count').focus()")  # an update keeps a field that has the focus
    count = browser.driver.find_element(By.ID, "count")
    count.clear()
    count.send_keys("5", Keys.ENTER)
    wait_for(lambda: "/change/resize" in browser.driver.current_url, DEADLINE_S, "the plan")
    command = browser.driver.find_element(By.CSS_SELECTOR, "pre.command").text
    assert command.startswith(f"anabranch topics alter {topic} --partitions 5 --wait --bootstrap-server")
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        assert len(admin.describe_topics([topic])[topic].partitions) == 4
        browser.driver.find_element(By.CSS_SELECTOR, "button.do").click()
        wait_for(lambda: len(admin.describe_topics([topic])[topic].partitions) == 5, DEADLINE_S, "the resize")
    wait_for(lambda: "is being resized to 5" in browser.driver.page_source, DEADLINE_S, "the answer")


def test_a_key_is_followed_across_a_split(cluster: Cluster, console: Served, topic: str) -> None:
    keys = [b"key-%d" % n for n in range(40)]
    with (
        Producer(bootstrap_servers=cluster.bootstrap_servers) as producer,
        Admin(bootstrap_servers=cluster.bootstrap_servers) as admin,
    ):
        before = {key: producer.send(topic, key=key, value=b"before").result().partition for key in keys}
        admin.create_partitions({topic: 8})

        def moved() -> bytes | None:
            after = {key: producer.send(topic, key=key, value=b"after").result().partition for key in keys}
            return next((key for key in keys if after[key] != before[key]), None)

        wait_for(lambda: moved() is not None, DEADLINE_S, "a key moves")
        key = moved()
        for number in range(1000):
            producer.send(topic, key=b"other-%d" % number, value=b"v")
    assert key is not None
    status, page = console.get(f"/topics/{topic}/messages?from=&format=text&key={key.decode()}")
    rows = re.findall(
        r'<tr><td data-label="partition" class="n">(\d+)</td>.*?class="code data">([^<]*)</td>'
        r'<td data-label="value" class="code data">(\w+)',
        page,
        re.S,
    )
    assert status == 200
    assert (rows[0][0], rows[0][2]) == (str(before[key]), "before")
    assert {row[1] for row in rows} == {key.decode()} and len({row[0] for row in rows}) == 2
    assert [row[2] for row in rows] == ["before"] + ["after"] * (len(rows) - 1)


def test_a_member_that_holds_up_a_rebalance_is_named(
    cluster: Cluster, console: Served, topic: str, fresh_name: Callable[[str], str]
) -> None:
    """The member has records, and does not poll again. Then another member joins."""
    group = fresh_name("group")
    common = {"bootstrap_servers": cluster.bootstrap_servers, "group_id": group, "auto_offset_reset": "earliest"}
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send(topic, key=b"k", value=b"v").result()
    with Consumer(**common, client_id="app-3") as stuck, Consumer(**common, client_id="app-4") as other:
        stuck.subscribe([topic])
        wait_for(lambda: stuck.getmany(timeout_ms=200), DEADLINE_S, "a record")
        owner = '<td data-label="member" data-sort="app-3">{}app-3 <span'
        wait_for(lambda: owner.format("") in console.get(f"/groups/{group}")[1], DEADLINE_S, "the page knows the owner")
        other.subscribe([topic])

        def is_named() -> bool:
            other.getmany(timeout_ms=100)
            return "app-3 on 127.0.0.1 has not joined again for" in console.get(f"/groups/{group}")[1]

        wait_for(is_named, DEADLINE_S, "the page names it")
        page = console.get(f"/groups/{group}")[1]
        assert "app-4 on" not in page and page.count(owner.format("was ")) == 4
        shown = f"Group {group} gets no records: app-3 on 127.0.0.1 has not joined its rebalance for"
        wait_for(lambda: shown in console.get("/")[1], DEADLINE_S, "the cluster page names it")
        wait_for(lambda: not stuck.getmany(timeout_ms=100) and not is_named(), DEADLINE_S, "the group continues")


def test_the_cluster_page_shows_the_write_rate(cluster: Cluster, console: Served, topic: str) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:

        def is_shown() -> bool:
            for n in range(100):
                producer.send(topic, key=b"%d" % n, value=b"v")
            producer.flush()
            page = console.get("/")[1]
            in_all = re.search(r"<dt>Written</dt><dd>[0-9,.]*[1-9][0-9,.]* records/s", page)
            is_active = re.search(r"<dt>Active controller</dt><dd>1\d\d\d ", page) is not None
            return in_all is not None and is_active and "<dt>Standby controllers</dt><dd>none<" in page

        wait_for(is_shown, DEADLINE_S, "two samples give a rate")


def test_the_cluster_page_shows_releases_and_free_space(cluster: Cluster, console: Served) -> None:
    brokers = len(cluster.bootstrap_servers.split(","))
    _, page = console.get("/")
    row = f'<td data-label="state">live</td><td data-label="release">{version("anabranch")}</td>'
    assert page.count(row) == brokers
    assert f'<span class="small">{version("anabranch")} at 127.0.0.1:' in page, "the controller's release"
    assert len(re.findall(r'<span title="/[^"]+">[\d.]+ [KMGT]?i?B of [\d.]+ [KMGT]?i?B</span>', page)) == brokers


def test_the_default_of_a_config_is_shown_beside_the_value_that_is_set(
    cluster: Cluster, console: Served, topic: str
) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.incremental_alter_configs(topics={topic: {"max.message.bytes": "2000000"}})
    _, page = console.get(f"/configs/topic/{topic}?set")
    row = page.partition('<tr><th scope="row" data-sort="max.message.bytes">')[2].partition("</tr>")[0]
    cells = dict(re.findall(r'<td data-label="([^"]+)"[^>]*>([^<]*)</td>', row))
    default = "message.max.bytes=1048588 (default config)"
    assert cells == {"value": "2000000", "comes from": "dynamic topic config", "if not set": default}, page
    assert "log.retention.hours=168 (default config)" in page, "another key may have another unit"
    assert "the largest record batch" in page


def test_messages_are_shown_by_their_schemas(cluster: Cluster, console: Served, topic: str) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for value in (b"\0\0\0\0\x07\x08Anna", b"\0\0\0\0\x08\x08Anna", b"plain text"):
            producer.send(topic, key=b"k", value=value).result()
    here = f"/topics/{topic}"
    _, page = console.get(here + "/messages?from=beginning")
    assert "{\n  &#34;name&#34;: &#34;Anna&#34;\n}" in page
    assert "the registry answers 404 to /schemas/ids/8" in page
    assert ">plain text<" in page
    wait_for(lambda: "100 %" in console.get(here)[1], DEADLINE_S, "the records are sampled")
    _, page = console.get(here)
    assert f"{here}/messages?from=beginning&amp;key=k" in page, "it links to the records of the hottest key"


def test_a_table_is_sorted_in_the_browser_and_keeps_its_order(
    cluster: Cluster, console: Served, browser: Browser, topic: str
) -> None:
    """The page holds all rows: no request is sent. Updates keep the order, and so does loading the page again."""
    browser.size("desktop")
    browser.open(f"{console.url}/topics/{topic}")
    browser.requests()
    order = "return [...live.querySelectorAll('tbody th')].map(e => e.textContent).join()"
    assert browser.run(order) == "0,1,2,3"
    browser.run("document.getElementById('sort-partition').focus()")
    ActionChains(browser.driver).send_keys(Keys.ENTER).perform()
    sorted_ = "return document.querySelector('[aria-sort]')?.getAttribute('aria-sort')"
    assert (browser.run(order), browser.run(sorted_)) == ("3,2,1,0", "descending")
    assert browser.requests() == [] and browser.driver.current_url.endswith("?sort=-partition")
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_partitions({topic: 6})
    wait_for(lambda: browser.run(order) == "5,4,3,2,1,0", DEADLINE_S, "the update is in the chosen order")
    assert browser.run("return document.activeElement.id") == "sort-partition"
    browser.open(browser.driver.current_url)
    assert (browser.run(order), browser.run(sorted_)) == ("5,4,3,2,1,0", "descending")
    browser.run("document.getElementById('sort-partition').click()")
    assert (browser.run(order), browser.run(sorted_)) == ("0,1,2,3,4,5", "ascending")
    browser.size("phone")
    shown = "return document.getElementById('sort-partition').getBoundingClientRect().x >= 0"
    assert browser.run(shown), "a phone shows the buttons too"
    assert browser.driver.get_log("browser") == []


def test_what_the_messages_page_shows_is_downloaded(cluster: Cluster, console: Served, topic: str) -> None:
    values = [b'{"user": "Anna"}', b"x" * 5_000, HOSTILE.encode(), b"\xff"]
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for value in values:
            producer.send(topic, key=b"k", value=value).result()
        _, page = console.get(f"/topics/{topic}/messages")
        producer.send(topic, key=b"k", value=b"newer than the page").result()
    assert "{\n  &#34;user&#34;: &#34;Anna&#34;\n}" in page
    link = re.search(r'id="download" href="([^"]+)"', page)
    assert link is not None
    with urllib.request.urlopen(console.url + unescape(link[1]), timeout=DEADLINE_S) as answer:
        assert answer.headers["content-disposition"] == f'attachment; filename="{topic}-4-records.jsonl"'
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert [parse_json(line).value for line in answer.read().splitlines()] == values


def test_charts_show_rate_lag_and_resizes(
    cluster: Cluster, console: Served, topic: str, fresh_name: Callable[[str], str]
) -> None:
    group = fresh_name("readers")
    with (
        KeyedLoad(cluster.bootstrap_servers, topic, group) as load,
        Admin(bootstrap_servers=cluster.bootstrap_servers) as admin,
    ):
        load.wait_for_more("the load")
        drawn = "<figcaption>Records written a second: <b>[1-9]"
        wait_for(lambda: re.search(drawn, console.get(f"/topics/{topic}")[1]), DEADLINE_S, "two samples")
        admin.create_partitions({topic: 5})
        resize = f"<title>{topic}, 4 to 5 partitions"
        wait_for(lambda: resize in console.get(f"/topics/{topic}")[1], DEADLINE_S, "a sample after the resize")
        assert resize in console.get("/")[1]
        wait_for(lambda: resize in console.get(f"/groups/{group}")[1], DEADLINE_S, "the group has read it")


def test_a_console_without_history_has_no_charts(cluster: Cluster) -> None:
    with Served(cluster.bootstrap_servers, "--history-minutes", "0") as served:
        page = served.get("/")[1]
        assert "<figure>" not in page and "preview changes, but not make them" in page


def test_pages_are_reached_by_keyboard(console: Served, browser: Browser) -> None:
    browser.size("desktop")
    browser.open(console.url + "/")
    wanted = browser.run("return [...document.querySelectorAll('a[href]')].map(e => e.getAttribute('href'))")
    reached = set()
    for _ in range(3 * len(wanted)):
        ActionChains(browser.driver).send_keys(Keys.TAB).perform()
        reached.add(browser.run("return document.activeElement.getAttribute('href')"))
    assert set(wanted) <= reached


@pytest.mark.parametrize(
    ("path", "status", "expected"),
    [
        ("/topics/there-is-none", 404, "topic there-is-none does not exist"),
        ("/groups/there-is-none", 404, "group there-is-none does not exist"),
        ("/configs/broker/77", 404, "broker 77 is not in the cluster"),
        ("/configs/broker/x", 404, "x is no broker"),
        ("/configs/thing/1", 404, "thing is neither topic nor broker"),
        ("/topics?page=x", 400, "a number"),
        ("/topics?page=%C2%B2", 400, "a number"),
        ("/topics?page=" + "9" * 5_000, 400, "a number"),
        ("/configs/broker/%C2%B2", 404, "is no broker"),
        ("/change/nothing", 404, "is not a page"),
        ("/nothing", 404, "is not a page"),
        ("/live?path=/nothing", 404, "has no live updates"),
    ],
)
def test_a_page_that_does_not_exist_is_answered_with_the_reason(
    console: Served, path: str, status: int, expected: str
) -> None:
    answer = console.get(path)
    assert (answer[0], expected in answer[1]) == (status, True), answer[1]


def test_a_page_stays_connected(console: Served) -> None:
    """The connection lasts longer than the time limit of a request; an event or a comment comes every second."""
    with urllib.request.urlopen(f"{console.url}/live?path=/groups", timeout=DEADLINE_S) as stream:
        for _ in range(REQUEST_S + 2):
            assert stream.readline().startswith((b"data: ", b": as before"))
            assert stream.readline() == b"\n"


def test_a_page_opened_at_the_limit_of_live_updates_is_updated_once_others_are_closed(
    console: Served, browser: Browser
) -> None:
    browser.open("about:blank")  # the page before may still have updates
    with contextlib.ExitStack() as others:
        with contextlib.suppress(urllib.error.HTTPError):
            for _ in range(STREAMS):
                stream = others.enter_context(
                    urllib.request.urlopen(f"{console.url}/live?path=/groups", timeout=DEADLINE_S)
                )
                assert stream.readline().startswith(b"data: ")
        browser.open(f"{console.url}/")
        shown = browser.driver.find_element(By.ID, "state")
        wait_for(lambda: "trying again" in shown.text, DEADLINE_S, "the page shows that it is not updated")
    wait_for(lambda: shown.text.startswith("live"), DEADLINE_S, "the page is updated")
    browser.driver.get_log("browser")


def test_a_connection_that_sends_half_a_request_is_closed(console: Served) -> None:
    host, _, port = console.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        while connection.recv(4096):
            pass


def test_a_head_that_is_too_large_is_refused(console: Served) -> None:
    host, _, port = console.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as connection:
        answer = b""
        with contextlib.suppress(ConnectionError):  # the console may close the connection before it has read everything
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Large: " + b"x" * 100_000)
            answer = connection.recv(4096)
    assert b" 200 " not in answer


def test_a_misspelt_topic_is_not_created(cluster: Cluster, console: Served) -> None:
    console.get("/topics/mispelt/messages")
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        assert "mispelt" not in {listing.name for listing in admin.list_topics()}


def test_a_page_is_updated_while_a_field_of_it_is_in_use(
    cluster: Cluster, console: Served, browser: Browser, topic: str, fresh_name: Callable[[str], str]
) -> None:
    with KeyedLoad(cluster.bootstrap_servers, topic, fresh_name("readers")) as load:
        load.wait_for_more("the load")
        browser.size("desktop")
        browser.open(f"{console.url}/topics/{topic}")

        def wait_for_an_update() -> None:
            before = browser.run("return live.textContent")
            wait_for(lambda: browser.run("return live.textContent") != before, DEADLINE_S, "the page is updated")

        browser.run("document.getElementById('count').select()")
        wait_for_an_update()
        assert browser.run("return document.activeElement.id") == "count"
        ActionChains(browser.driver).send_keys(Keys.TAB).perform()
        assert browser.run("return String(getSelection()) === document.getElementById('count').value")
        wait_for_an_update()
        browser.run("document.getElementById('count').focus()")  # an update keeps a field that has the focus
        field = browser.driver.find_element(By.ID, "count")
        field.clear()
        field.send_keys("77")
        wait_for_an_update()
        assert browser.run("return document.getElementById('count').value") == "77"
        browser.run("getSelection().selectAllChildren(document.querySelector('h1')); document.activeElement.blur()")
        shown = browser.run("return live.textContent")
        source = f"{console.url}/live?path=/topics/{topic}"
        with urllib.request.urlopen(source, timeout=DEADLINE_S) as stream:
            for _ in range(3):  # another reader of the page gets news meanwhile
                while not stream.readline().startswith(b"data: "):
                    pass
        assert browser.run("return live.textContent") == shown, "text that is selected to be copied stays"
        browser.driver.get_log("browser")


def test_an_open_page_shows_when_the_cluster_is_gone_and_when_it_is_back(browser: Browser) -> None:
    with ProcessCluster(brokers=1) as cluster, Served(cluster.bootstrap) as served:
        browser.size("desktop")
        browser.open(f"{served.url}/")
        assert "Nothing. Every partition has a leader" in browser.driver.page_source
        os.kill(cluster.broker_pids()[1], signal.SIGSTOP)
        try:
            wait_for(
                lambda: "Not up to date." in browser.driver.page_source,
                DEADLINE_S,
                "the page shows that it is out of date",
            )
            assert browser.driver.find_element(By.ID, "state").text == "not up to date"
            assert browser.driver.find_elements(By.CSS_SELECTOR, ".note.ok") == []
        finally:
            os.kill(cluster.broker_pids()[1], signal.SIGCONT)
        wait_for(
            lambda: "Not up to date." not in browser.driver.page_source, DEADLINE_S, "the page is up to date again"
        )
        assert browser.driver.find_element(By.ID, "state").text.startswith("live")
        assert len(browser.driver.find_elements(By.CSS_SELECTOR, ".note.ok")) == 1
        browser.driver.get_log("browser")


def test_a_page_shows_that_the_cluster_does_not_answer(unused_address: str) -> None:
    with Served(unused_address) as served:
        status, page = served.get("/")
        assert (status, "The cluster does not answer." in page) == (503, True)
        assert served.exit_status is None


@pytest.fixture
def unused_address() -> Iterator[str]:
    """An address that refuses connections: the port is taken, but no socket listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"
