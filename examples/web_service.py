"""A web service that writes to a topic: ``python examples/web_service.py --port 8000``, then

    curl --data '{"page": "/"}' http://127.0.0.1:8000/clicks/user-7

One producer serves all requests: it starts with the service, and sends what it still has when the service stops. A
request is answered when its record is acknowledged. Needs ``pip install fastapi 'hypercorn[trio]'``.
"""

import argparse
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from fastapi import FastAPI, HTTPException, Request
from hypercorn.asyncio import serve
from hypercorn.config import Config

from anabranch import KafkaError, Producer

SERVERS = os.environ.get("ANABRANCH_BOOTSTRAP_SERVER", "127.0.0.1:9092")
TOPIC = "clicks"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with Producer(bootstrap_servers=SERVERS, delivery_timeout_ms=20_000, request_timeout_ms=10_000) as producer:
        app.state.producer = producer
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/clicks/{user}", status_code=201)
async def click(user: str, request: Request) -> dict[str, int]:
    """Write the body under the user as the key: the clicks of one user stay in order."""
    try:
        written = await app.state.producer.send_and_wait(TOPIC, key=user.encode(), value=await request.body())
    except KafkaError as error:
        # A retriable error says nothing against the record: the caller may send it again.
        raise HTTPException(503 if error.code.retriable else 400, f"{error.code.name}: {error}") from error
    return {"partition": written.partition, "offset": written.offset}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000)
    config = Config()
    config.bind = [f"127.0.0.1:{parser.parse_args().port}"]
    anyio.run(serve, app, config)
