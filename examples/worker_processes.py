"""Workers in processes, with the blocking client: ``python examples/worker_processes.py --jobs 100 --workers 2``.

Each process makes its own consumer: a client belongs to the process that made it, and a child of ``fork`` cannot use
its parent's. The workers are members of one group, so the jobs of one key go to one worker, in order.
"""

import argparse
import multiprocessing
import os
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event

from anabranch.sync import Consumer, Producer

SERVERS = os.environ.get("ANABRANCH_BOOTSTRAP_SERVER", "127.0.0.1:9092")
TOPIC, GROUP = "jobs", "job-workers"


def work(done: "Queue[tuple[int, int]]", stop: Event) -> None:
    """Square numbers until ``stop``. The last commit and the leaving of the group come with the end of ``with``."""
    with Consumer(bootstrap_servers=SERVERS, group_id=GROUP, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([TOPIC])
        while not stop.is_set():
            for records in consumer.getmany(timeout_ms=200).values():
                for record in records:
                    number = int(record.value)
                    done.put((number, number * number))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    done: Queue[tuple[int, int]] = multiprocessing.Queue()
    stop = multiprocessing.Event()
    workers = [multiprocessing.Process(target=work, args=(done, stop)) for _ in range(options.workers)]
    for worker in workers:
        worker.start()
    with Producer(bootstrap_servers=SERVERS) as producer:
        producer.send_many(TOPIC, [(b"key-%d" % (n % 10), b"%d" % n) for n in range(options.jobs)])
    results: dict[int, int] = {}
    while len(results) < options.jobs:  # a worker that has crashed would give a job to another one a second time
        number, square = done.get()
        results[number] = square
    stop.set()
    for worker in workers:
        worker.join()
    print(f"{len(results)} jobs, the sum is {sum(results.values())}")


if __name__ == "__main__":
    main()
