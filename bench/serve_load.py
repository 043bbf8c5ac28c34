"""``upslope serve`` under load: many clients at once, a small request beside a very large one, memory over thousands of requests.

The server runs in a process of its own, so that the figures are its own; the clients are OpenAI's, all in one event loop.

    python bench/serve_load.py clients --count 1000
    python bench/serve_load.py beside
    python bench/serve_load.py soak --count 10000
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai


@contextmanager
def served(model: str) -> Iterator[tuple[str, int]]:
    """The address of a server, and the number of its process."""
    words = [sys.executable, "-m", "upslope.cli", "serve", model, "--port", "0", "--threads", "1", "--name", "m"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.terminate()


def resident(pid: int) -> float:
    """Memory of a process in MiB."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def client_of(url: str, connections: int) -> openai.AsyncOpenAI:
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    http = httpx.AsyncClient(limits=limits, timeout=httpx.Timeout(600.0))
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http)


async def clients(url: str, pid: int, count: int) -> None:
    """All at once, each with a connection of its own and without a second try."""
    client = client_of(url, count)

    async def one(number: int) -> str:
        try:
            found = await client.completions.create(model="m", prompt=f"{number}", max_tokens=16, seed=number)
        except openai.APIError as wrong:
            return f"{type(wrong).__name__}: {wrong.__cause__!r}"
        return "answered" if found.choices[0].finish_reason else "odd"

    began = time.monotonic()
    said = Counter(await asyncio.gather(*(one(number) for number in range(count))))
    print(f"{count} clients at once: {dict(said)} in {time.monotonic() - began:.1f} s; server {resident(pid):.0f} MiB", flush=True)
    await client.close()


async def beside(url: str, pid: int) -> None:
    """How long a request for 4 tokens takes beside 2,048 completions of 200, and after their client has left."""
    client = client_of(url, 8)

    async def small() -> float:
        began = time.monotonic()
        await client.completions.create(model="m", prompt="abc", max_tokens=4)
        return time.monotonic() - began

    alone = [await small() for _ in range(5)]
    before = resident(pid)
    large = asyncio.create_task(client.completions.create(model="m", prompt="abc", n=2048, max_tokens=200, seed=1))
    await asyncio.sleep(2)
    while_large = [await small() for _ in range(10)]
    during = resident(pid)
    large.cancel()
    await asyncio.gather(large, return_exceptions=True)
    after = [await small() for _ in range(10)]
    await asyncio.sleep(2)
    print(f"4 tokens, at most: {max(alone):.3f} s alone, {max(while_large):.3f} s beside it, {max(after):.3f} s after it left")
    print(f"server: {before:.0f} MiB before, {during:.0f} MiB beside it, {resident(pid):.0f} MiB after it left")
    await client.close()


async def soak(url: str, pid: int, count: int) -> None:
    """Requests of many kinds, 32 at a time, some streamed, some wrong, some left; memory every tenth of them."""
    client = client_of(url, 64)
    room = asyncio.Semaphore(32)

    async def one(number: int) -> None:
        async with room:
            kind = number % 5
            asked = {"model": "m", "prompt": "abc" * (number % 7 + 1), "max_tokens": 4 + number % 13, "n": 1 + number % 3}
            try:
                if kind == 1:
                    async for _ in await client.completions.create(**asked, stream=True):
                        pass
                elif kind == 2:
                    await client.completions.create(**asked, temperature=-1)
                elif kind == 3:
                    await asyncio.wait_for(client.completions.create(**asked), 0.02)
                else:
                    await client.completions.create(**asked, stop=["q"] if kind == 4 else None, logprobs=1)
            except (openai.BadRequestError, TimeoutError):
                pass

    began = time.monotonic()
    tenth = max(count // 10, 1)
    for first in range(0, count, tenth):
        await asyncio.gather(*(one(number) for number in range(first, min(first + tenth, count))))
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
        files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        print(
            f"{min(first + tenth, count):6d} requests: {resident(pid):.1f} MiB, {threads} threads, {files} open files, "
            f"{time.monotonic() - began:.0f} s",
            flush=True,
        )
    await client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("clients", "beside", "soak"))
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--model", default="tiny")
    flags = parser.parse_args()
    with served(flags.model) as (url, pid):
        work = {"clients": clients, "soak": soak}.get(flags.what)
        asyncio.run(beside(url, pid) if work is None else work(url, pid, flags.count))


if __name__ == "__main__":
    main()
