"""Makes the console's pictures in ``docs/``: ``python docs/site/screenshots.py``, in some minutes. Needs Chromium.

A topic of four partitions is grown twice and shrunk once while records are written and two groups read.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from anabranch import NewTopic  # noqa: E402
from anabranch.sync import Admin, Consumer, Producer  # noqa: E402
from anabranch.testing.processes import ProcessCluster, wait_for  # noqa: E402
from tests.support.seen.chromium import SIZES, Browser, chromium  # noqa: E402
from tests.support.seen.served_console import Served  # noqa: E402

TOPIC, DEADLINE_S = "orders", 120.0
COUNTS = (6, 8, 6)
BETWEEN_S = 40.0
GROUPS = {"billing": 0.1, "reports": 0.6}
"""The pause of each group's member after 50 records, in s."""
PAGES = {"console-topic.png": f"/topics/{TOPIC}", "console-group.png": "/groups/reports"}


def write(servers: str, stop: threading.Event) -> None:
    with Producer(bootstrap_servers=servers) as producer:
        number = 0
        while not stop.wait(0.25):
            for _ in range(random.randint(20, 60)):
                number += 1
                key = f"user-{random.randint(0, 300)}".encode()
                producer.send(TOPIC, key=key, value=json.dumps({"order": number, "items": number % 5}).encode())


def read(servers: str, stop: threading.Event, group: str) -> None:
    with Consumer(
        bootstrap_servers=servers, group_id=group, client_id=f"{group}-1", auto_offset_reset="earliest"
    ) as one:
        one.subscribe([TOPIC])
        while not stop.wait(GROUPS[group]):
            one.getmany(timeout_ms=200, max_records=50)


def shoot(browser: Browser, url: str, picture: Path) -> None:
    browser.size("desktop")
    browser.scheme("light")
    browser.open(url)
    is_live = "return document.getElementById('state').textContent.startsWith('live')"
    wait_for(lambda: browser.run(is_live), DEADLINE_S, f"{url} is up to date")
    width, height = SIZES["desktop"]
    size = {"width": width, "height": min(height, browser.run("return document.documentElement.scrollHeight"))}
    browser.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {**size, "deviceScaleFactor": 1, "mobile": False}
    )
    browser.driver.save_screenshot(str(picture))


def main() -> None:
    with (
        ProcessCluster(brokers=3) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap) as admin,
        Served(cluster.bootstrap) as console,
        chromium() as browser,
    ):
        admin.create_topics([NewTopic(TOPIC, 4, 3)])
        stop = threading.Event()
        threads = [threading.Thread(target=write, args=(cluster.bootstrap, stop))]
        threads += [threading.Thread(target=read, args=(cluster.bootstrap, stop, group)) for group in GROUPS]
        for thread in threads:
            thread.start()
        try:
            for count in COUNTS:
                stop.wait(BETWEEN_S)
                admin.create_partitions({TOPIC: count})
            stop.wait(BETWEEN_S)
            for picture, path in PAGES.items():
                shoot(browser, console.url + path, ROOT / "docs" / picture)
        finally:
            stop.set()
            for thread in threads:
                thread.join()


if __name__ == "__main__":
    main()
