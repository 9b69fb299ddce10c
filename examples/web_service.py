"""A web service that writes a record for each click. The producer starts and stops with the service.

Run it with ``uvicorn examples.web_service:app``.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request

from anabranch import Producer

BOOTSTRAP = os.environ.get("ANABRANCH_BOOTSTRAP_SERVER", "127.0.0.1:9092")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with Producer(bootstrap_servers=BOOTSTRAP, linger_ms=5) as app.state.producer:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/clicks/{user}")
async def click(user: str, request: Request) -> dict[str, int]:
    """Answer once the record is acknowledged. Clicks of one user keep their order."""
    written = await request.app.state.producer.send_and_wait("clicks", b"click", user.encode())
    return {"partition": written.partition, "offset": written.offset}
