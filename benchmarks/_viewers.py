"""Many viewers of a run's page in one process: each receives live states and requests figures as the page does."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

PAUSE = 2.0


async def view(host: str, port: int, run: str, counts: dict[str, int]) -> None:
    """Run one viewer: a stream of live states, and a second connection for figures."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET /runs/{run}/live HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
    await writer.drain()
    await reader.readuntil(b"\r\n\r\n")
    counts["connected"] += 1
    figure_connection, tag, next_request = await asyncio.open_connection(host, port), "", 0.0
    while line := await reader.readline():
        if line.startswith(b"event: end"):
            break
        if line.startswith(b"event: state"):
            counts["states"] += 1
            if time.monotonic() >= next_request:
                next_request = time.monotonic() + PAUSE
                tag = await figures(figure_connection, host, port, run, tag)
                counts["figures"] += 1
    counts["ended"] += 1
    writer.close()
    figure_connection[1].close()


async def figures(
    figure_connection: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    host: str,
    port: int,
    run: str,
    tag: str,
) -> str:
    """Request the figures and return their entity tag."""
    reader, writer = figure_connection
    condition = f"If-None-Match: {tag}\r\n" if tag else ""
    lines = (
        f"GET /runs/{run}/figures HTTP/1.1\r\nHost: {host}:{port}\r\nAccept-Encoding: gzip\r\n{condition}\r\n"
    )
    writer.write(lines.encode())
    await writer.drain()
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
    if length := int(fields.get("content-length", "0")):
        await reader.readexactly(length)
    return fields.get("etag", tag)


async def main(host: str, port: int, run: str, number: int) -> None:
    """Run all viewers; print how many are connected, and the counts at the end."""
    counts = dict.fromkeys(("connected", "states", "figures", "ended"), 0)
    tasks = [asyncio.create_task(view(host, port, run, counts)) for _ in range(number)]
    while counts["connected"] < number:
        await asyncio.sleep(0.05)
    print(json.dumps(counts), flush=True)
    await asyncio.gather(*tasks, return_exceptions=True)
    print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    os.nice(19)  # viewers would run on other machines
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
