"""Counts requests by API: their number, the time of each part and their errors, as in Kafka's ``RequestMetrics``.

The times of a request are only kept when it is answered. Many requests are counted together, at the latest when the
metrics are read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from operator import add, sub
from typing import Any

from prometheus_client.core import Metric

from anabranch.broker.metrics.table import BROKER_METRICS
from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.errors import ErrorCode

BOUNDS_MS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 5000.0)
_BOUNDS_S = tuple(bound / 1000 for bound in BOUNDS_MS)
_COUNTED_AT_ONCE = 256
_PREFIX = "kafka_network_requestmetrics"
_FETCH, _FOLLOWER = int(ApiKey.FETCH), -1
"""Fetches of followers are counted separately."""
_MAX_RESULTS = 1000
"""At most so many results of one response are searched for errors."""

_PARTS = ("requestqueuetimems", "localtimems", "remotetimems", "responsesendtimems", "totaltimems")


class _Part:
    """The time, in seconds, that one part of the requests of one API took."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * len(_BOUNDS_S)
        """For each bound the number of requests that took at most this long."""
        self.total = 0.0

    def add(self, counts: list[int], total: float) -> None:
        self.counts = list(map(add, self.counts, counts))
        self.total += total

    def buckets(self, requests: int) -> list[tuple[str, float]]:
        return [*zip(map(str, BOUNDS_MS), map(float, self.counts)), ("+Inf", float(requests))]


class _Api:
    """The requests of one API. ``parts`` are in the order of ``_PARTS``."""

    __slots__ = ("latest", "parts", "versions")

    def __init__(self) -> None:
        self.versions: Counter[int] = Counter()
        self.parts = tuple(_Part() for _ in _PARTS)
        self.latest: list[tuple[int, float, float, float, float, float]] = []
        """The version and the times of requests that are not counted yet."""

    @property
    def requests(self) -> int:
        return sum(self.versions.values())

    def count_latest(self) -> None:
        if not self.latest:
            return
        versions, arrived, begun, handled, filled, sent = zip(*self.latest)
        self.latest.clear()
        self.versions.update(versions)
        began, ended = (arrived, begun, handled, filled, arrived), (begun, handled, filled, sent, sent)
        for part, since, until in zip(self.parts, began, ended):
            took = sorted(map(sub, until, since))
            part.add([bisect_right(took, bound) for bound in _BOUNDS_S], sum(took))


class RequestMetrics:
    """A source of ``Metrics``; ``answered`` is called once for each request."""

    def __init__(self) -> None:
        self._apis: dict[int, _Api] = {}
        self.errors: dict[tuple[int, int], int] = {}
        """The number of errors by API and code."""

    def answered(
        self,
        api_key: int,
        version: int,
        is_follower: bool,
        arrived: float,
        begun: float,
        handled: float,
        filled: float,
        sent: float,
    ) -> None:
        """Count a request after its response was sent, or if it has no response. Times are of one clock, in seconds.

        ``handled``: when the handler returned. ``filled``: when the response was ready.
        """
        key = _FOLLOWER if is_follower else api_key
        api = self._apis.get(key)
        if api is None:
            api = self._apis[key] = _Api()
        latest = api.latest
        latest.append((version, arrived, begun, handled, filled, sent))
        if len(latest) >= _COUNTED_AT_ONCE:
            api.count_latest()

    def note_error(self, api_key: int, code: int, count: int = 1) -> None:
        key = (api_key, code)
        self.errors[key] = self.errors.get(key, 0) + count

    def note_errors(self, api_key: int, response: Any) -> None:
        """Count the error codes of a response and of its results, down to the second level."""
        code = getattr(response, "error_code", 0)
        if code:
            self.note_error(api_key, code)
        left = _MAX_RESULTS
        for results in _lists(response):
            for result in results[:left]:
                code = getattr(result, "error_code", 0)
                if code:
                    self.note_error(api_key, code)
                for inner in _lists(result):
                    for one in inner[: max(left, 0)]:
                        code = getattr(one, "error_code", 0)
                        if code:
                            self.note_error(api_key, code)
                    left -= len(inner)
            left -= len(results)
            if left <= 0:
                return

    # ------------------------------------------------------------ reading

    def __call__(self) -> Iterator[Metric | None]:
        for each in self._apis.values():
            each.count_latest()
        apis = list(self._named())
        requests = BROKER_METRICS.family(f"{_PREFIX}_requests")
        for name, api in apis:
            for version, count in sorted(api.versions.items()):
                requests.add_metric((name, str(version)), count)
        yield requests
        errors = BROKER_METRICS.family(f"{_PREFIX}_errors")
        for (key, code), count in sorted(self.errors.items()):
            errors.add_metric((_name(key), ErrorCode.of(code).name), count)
        yield errors
        for at, part in enumerate(_PARTS):
            yield None
            family = BROKER_METRICS.family(f"{_PREFIX}_{part}")
            for name, api in apis:
                family.add_metric((name,), api.parts[at].buckets(api.requests), api.parts[at].total * 1000)
            yield family

    def _named(self) -> Iterator[tuple[str, _Api]]:
        """The APIs by name; fetches appear three times, as in Kafka: all, of consumers, of followers."""
        of_consumers, of_followers = self._apis.get(_FETCH), self._apis.get(_FOLLOWER)
        for key in sorted(self._apis):
            if key not in (_FETCH, _FOLLOWER):
                yield _name(key), self._apis[key]
        if of_consumers is not None or of_followers is not None:
            consumers, followers = of_consumers or _Api(), of_followers or _Api()
            yield "Fetch", _sum(consumers, followers)
            yield "FetchConsumer", consumers
            yield "FetchFollower", followers


def _name(api_key: int) -> str:
    return API[ApiKey(api_key)].name


def _sum(one: _Api, other: _Api) -> _Api:
    found = _Api()
    for api in (one, other):
        found.versions.update(api.versions)
        for part, more in zip(found.parts, api.parts):
            part.add(more.counts, more.total)
    return found


def _lists(message: Any) -> list[list[Any]]:
    """The lists in a message."""
    values = (getattr(message, name) for name in getattr(message, "FIELDS", ()))
    return [value for value in values if isinstance(value, list) and value]
